"""The demos; nothing else imports them."""
