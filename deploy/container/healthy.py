#!/opt/keeplast/bin/python
"""Asks keeplast's console whether its loop turns: 0 when it does, else 1 and why.

    keeplast-healthy [URL]      default: the console's default port on the loopback

An image has no curl.
"""

import sys
import urllib.error
import urllib.request

URL = "http://127.0.0.1:9590/healthz"
SECONDS_MAX = 4
SHOWN_MAX = 500


def main(url: str = URL) -> int:
    """Ask once."""
    # A proxy that the environment names is for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=SECONDS_MAX) as answer:
            print(answer.read(SHOWN_MAX).decode(errors="replace").strip() or "healthy")
            return 0
    except urllib.error.HTTPError as error:
        problem = error.read(SHOWN_MAX).decode(errors="replace").strip()
    except OSError as error:
        problem = str(error)
    print(f"not healthy: {problem}. url={url}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
