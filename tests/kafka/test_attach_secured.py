"""Attached rounds through a listener with SASL over SSL, by principals that may do little.

The broker allows nothing but by ACLs (``StandardAuthorizer``). ``place check`` names each
permission that is missing; what the page of permissions lists is enough, and each of it is needed.
Two more listeners know their principals by SCRAM and by certificates.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    pkcs12,
)
from msgspec import Struct

from keeplast.cluster import client as client_module
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.client_properties import decode_client_properties
from keeplast.cluster.live_cluster import METADATA_TOPIC
from keeplast.errors import UnavailableError
from tests.kafka.broker import Broker, tiered_broker
from tests.kafka.test_attach import create
from tests.kafka.test_attach_rounds import wait_until_remote
from tests.support.acknowledged import Acknowledged
from tests.support.attach_process import AttachProcess
from tests.support.checked_place import findings
from tests.support.live_call import live_call
from tests.support.live_rounds import LiveCompactor
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

VERSION = "3.9.1"
"""A broker of 4.x gives no client its small segment size: the command would keep it all."""
TOPIC, OTHER = "orders", "payments"
PASSWORDS = {"look": "look-secret", "compact": "compact-secret"}
SCRAM_USER, SCRAM_PASSWORD = "salted", "salted-secret"
CERTIFIED = "CN=certified"
"""Whom a broker takes the holder of a certificate for: its subject."""
STORE_PASSWORD = "keystore-secret"
SECRETS = (*PASSWORDS.values(), SCRAM_PASSWORD, STORE_PASSWORD)
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
ANSWER_SECONDS = 5.0
LISTENERS = {"CLIENTS": "SASL_SSL", "SALTED": "SASL_SSL", "CERTIFIED": "SSL"}
WRONG_PASSWORD, NO_CERTIFICATE, IN_PEM = "wrong-password", "no-certificate", "in-pem"
CHECK_FAILED, REFUSED = 1, 4
COMMAND_SECONDS = 300
Acl = tuple[str, str | None]
"""An operation on a topic, or on the cluster."""
LOOK: tuple[Acl, ...] = (
    ("DescribeConfigs", None), ("Read", METADATA_TOPIC), ("DescribeConfigs", METADATA_TOPIC),
    ("Describe", TOPIC), ("DescribeConfigs", TOPIC),
)  # fmt: skip
"""What commands that only look need, as docs/how-to/attach-permissions.md lists it."""
CHANGE: tuple[Acl, ...] = (*LOOK, ("Write", METADATA_TOPIC))
OPERATIONS = {
    "Describe": AclOperation.DESCRIBE, "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ, "Write": AclOperation.WRITE,
}  # fmt: skip


class Secured(Struct, frozen=True):
    """A broker, and at which port it lets in each of its clients that need a name."""

    broker: Broker
    ports: Mapping[str, int]

    def address(self, user: str) -> str:
        """Return what a user bootstraps from."""
        return f"127.0.0.1:{self.ports[user]}"

    def attach(self, user: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command of ``keeplast attach`` as a user; return exit code and document."""
        return self._run(user, *live_call(self.address(user), *arguments))

    def check(self, user: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Check the cluster as a user; return exit code and document."""
        return self._run(user, "place", "check", f"kafka://{self.address(user)}", *arguments)

    def _run(self, user: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        process = AttachProcess(
            [*arguments, "--json", "--command-config", str(self.properties(user))],
            self.broker.root / "said",
        )
        code = process.wait(COMMAND_SECONDS)
        assert not [each for each in SECRETS if each in process.output()]
        return code, process.document()

    def properties(self, user: str) -> Path:
        """Return the client.properties of a user."""
        return self.broker.root / f"{user}.properties"

    def client(self, user: str) -> ClusterClient:
        """Return a client of this process."""
        path = self.properties(user)
        return ClusterClient(
            self.address(user), decode_client_properties(path.read_bytes(), str(path))
        )

    def allow(self, user: str, *acls: Acl) -> None:
        """Allow operations, and wait until the broker knows."""
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        for acl in acls:
            for answer in admin.create_acls([_binding(AclBinding, user, acl)]).values():
                answer.result(60)
        wait_until(lambda: set(acls) <= self._allowed(user))

    def forbid(self, user: str, acl: Acl) -> None:
        """Take a permission back, and wait until the broker knows."""
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        for answer in admin.delete_acls([_binding(AclBindingFilter, user, acl)]).values():
            answer.result(60)
        wait_until(lambda: acl not in self._allowed(user))

    def _allowed(self, user: str) -> set[Acl]:
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        anything: Any = None
        every = AclBindingFilter(
            ResourceType.ANY, anything, ResourcePatternType.ANY, f"User:{user}", anything,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        names = {operation: name for name, operation in OPERATIONS.items()}
        return {
            (names[each.operation], each.name if each.restype is ResourceType.TOPIC else None)
            for each in admin.describe_acls(every).result(60)
        }


def _binding(kind: type[Any], user: str, acl: Acl) -> Any:
    operation, topic = acl
    resource = ResourceType.BROKER if topic is None else ResourceType.TOPIC
    return kind(
        resource, topic or "kafka-cluster", ResourcePatternType.LITERAL, f"User:{user}", "*",
        OPERATIONS[operation], AclPermissionType.ALLOW,
    )  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root = tmp_path_factory.mktemp("secured")
    keystore, certificate = make_keystore(root, "broker", "CN=127.0.0.1")
    clients, client_certificate = make_keystore(root, "certified", CERTIFIED)
    broker = tiered_broker(VERSION, root)
    doors = {name: (free_port(), protocol) for name, protocol in LISTENERS.items()}
    open_at = ",".join(f"{name}://127.0.0.1:{port}" for name, (port, _) in doors.items())
    protocols = ",".join(f"{name}:{protocol}" for name, (_, protocol) in doors.items())
    users = " ".join(f'user_{name}="{word}"' for name, word in PASSWORDS.items())
    broker.configure(
        {
            "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{broker.controller},{open_at}",
            "advertised.listeners": f"PLAINTEXT://{broker.address},{open_at}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            f"{protocols}",
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{PLAIN} required {users};",
            "listener.name.salted.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.salted.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
            "listener.name.certified.ssl.client.auth": "required",
            "listener.name.certified.ssl.truststore.type": "PEM",
            "listener.name.certified.ssl.truststore.location": str(client_certificate),
            "ssl.keystore.location": str(keystore),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
    )
    trusted = f"ssl.truststore.type=PEM\nssl.truststore.location={certificate}\n"
    for user, password in PASSWORDS.items():
        (root / f"{user}.properties").write_text(login_of("PLAIN", user, password) + trusted)
    for user, password in ((SCRAM_USER, SCRAM_PASSWORD), (WRONG_PASSWORD, SCRAM_PASSWORD[:-1])):
        (root / f"{user}.properties").write_text(
            login_of("SCRAM-SHA-512", SCRAM_USER, password) + trusted
        )
    (root / f"{CERTIFIED}.properties").write_text(
        f"security.protocol=SSL\nssl.keystore.type=PKCS12\nssl.keystore.location={clients}\n"
        f"ssl.keystore.password={STORE_PASSWORD}\nssl.key.password={STORE_PASSWORD}\n{trusted}"
    )
    (root / f"{IN_PEM}.properties").write_text(
        f"security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location={in_pem(clients)}\n"
        f"ssl.key.password={STORE_PASSWORD}\n{trusted}"
    )
    (root / f"{NO_CERTIFICATE}.properties").write_text(f"security.protocol=SSL\n{trusted}")
    users_of = {
        "CLIENTS": tuple(PASSWORDS), "SALTED": (SCRAM_USER, WRONG_PASSWORD),
        "CERTIFIED": (CERTIFIED, IN_PEM, NO_CERTIFICATE),
    }  # fmt: skip
    ports = {user: doors[name][0] for name, users in users_of.items() for user in users}
    with broker:
        for topic in (TOPIC, OTHER):
            create(broker, topic, 1)
        salt(broker)
        yield Secured(broker, ports)


def login_of(mechanism: str, user: str, password: str) -> str:
    """Return the lines of client properties by which a user logs in over SSL."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return (
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
    )


def salt(broker: Broker) -> None:
    """Let the broker know the password of the user of SCRAM."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    known = UserScramCredentialUpsertion(SCRAM_USER, info, SCRAM_PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": broker.address})
    for answer in admin.alter_user_scram_credentials([known]).values():
        answer.result(60)


def make_keystore(root: Path, alias: str, subject: str) -> tuple[Path, Path]:
    """Return a key with its certificate for the loopback interface, and the certificate alone."""
    keystore, certificate = root / f"{alias}.p12", root / f"{alias}.pem"
    where = ["-alias", alias, "-keystore", str(keystore), "-storepass", STORE_PASSWORD]
    made = [
        "keytool", "-genkeypair", "-keyalg", "EC", "-dname", subject, "-ext",
        "SAN=ip:127.0.0.1", "-validity", "30", "-storetype", "PKCS12", *where,
    ]  # fmt: skip
    exported = ["keytool", "-exportcert", "-rfc", "-file", str(certificate), *where]
    for command in (made, exported):
        subprocess.run(command, check=True, capture_output=True)
    return keystore, certificate


def in_pem(keystore: Path) -> Path:
    """Return a file with a keystore's key, locked by the same password, and its certificate."""
    word = STORE_PASSWORD.encode()
    key, certificate, _ = pkcs12.load_key_and_certificates(keystore.read_bytes(), word)
    assert key is not None
    assert certificate is not None
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(word))
    path = keystore.with_suffix(".key.pem")
    path.write_bytes(locked + certificate.public_bytes(Encoding.PEM))
    return path


def needed(document: dict[str, Any]) -> list[str]:
    """Return what each finding asks to be allowed, as its line says it."""
    assert {"permission"} == {each["name"] for each in findings(document)}
    return [each["remedy"].partition("--operation ")[2] for each in findings(document)]


def as_line(acl: Acl) -> str:
    operation, topic = acl
    return f"{operation} {'--cluster' if topic is None else f'--topic {topic}'}"


def test_each_permission_that_is_missing_is_named_and_no_more_is_needed(secured: Secured) -> None:
    code, document = secured.check("look", "--topic", TOPIC)
    assert (CHECK_FAILED, []) == (code, document["topics"])
    assert [as_line(each) for each in LOOK] == needed(document)
    secured.allow("look", *LOOK)
    for missing in LOOK:
        secured.forbid("look", missing)
        assert [missing] == [
            (each.operation, each.topic) for each in secured.client("look").missing_rights([TOPIC])
        ]
        secured.allow("look", missing)
    assert [] == secured.client("look").missing_rights([TOPIC])
    code, document = secured.check("look")
    # What the principal may not see is no topic to it.
    assert (0, [TOPIC]) == (code, document["topics"])
    assert ["patch-release"] == [each["name"] for each in findings(document)]


@pytest.mark.parametrize("user", [SCRAM_USER, CERTIFIED])
def test_scram_and_a_certificate_of_the_clients_own_name_the_user(
    secured: Secured, user: str
) -> None:
    """The broker knows the principal by it: of what that may not do, ``place check`` says all."""
    code, document = secured.check(user, "--topic", TOPIC)
    assert (CHECK_FAILED, []) == (code, document["topics"])
    assert [as_line(each) for each in LOOK] == needed(document)
    secured.allow(user, *LOOK)
    code, document = secured.check(user)
    assert (0, [TOPIC]) == (code, document["topics"])


def test_a_certificate_in_pem_says_the_same_as_one_in_pkcs12(secured: Secured) -> None:
    secured.allow(CERTIFIED, *LOOK)
    code, document = secured.check(IN_PEM, "--topic", TOPIC)
    assert (0, [TOPIC]) == (code, document["topics"])


@pytest.mark.parametrize("user", [WRONG_PASSWORD, NO_CERTIFICATE])
def test_a_wrong_login_is_let_in_nowhere(
    secured: Secured, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", ANSWER_SECONDS)
    with pytest.raises(UnavailableError) as caught:
        secured.client(user).read_facts([TOPIC])
    assert not [each for each in SECRETS if each in str(caught.value)]


def test_a_round_needs_what_is_documented_and_fails_cleanly_without_each(secured: Secured) -> None:
    broker, acknowledged = secured.broker, Acknowledged(secured.broker.address, TOPIC)
    compactor = LiveCompactor(broker.address, broker.root / "look.db", broker.root / "remote")
    acknowledged.send(0, 3000)
    wait_until_remote(broker, compactor, TOPIC)
    places = (
        "--topic", TOPIC, "--decisions", f"sqlite:///{broker.root / 'decisions.db'}",
        "--storage", f"local:{broker.root / 'remote'}",
    )  # fmt: skip
    clean = ("clean", *places, "--despite", "dirty-ratio", "--cores", "1")
    secured.allow("compact", *CHANGE)
    before = compactor.status(TOPIC)
    for missing in CHANGE:
        secured.forbid("compact", missing)
        code, document = secured.attach("compact", *clean)
        assert REFUSED == code, document
        assert f"it needs {missing[0]} on the " in json.dumps(document)
        assert before == compactor.status(TOPIC)
        secured.allow("compact", missing)
    code, document = secured.attach("compact", *clean)
    assert 0 == code, document
    assert compactor.status(TOPIC).compacted.count
    assert REFUSED == secured.attach("compact", "verify", *places)[0]
    secured.allow("compact", ("Read", TOPIC))
    assert 0 == secured.attach("compact", "verify", *places)[0]
    assert 0 == secured.attach("compact", "collect", *places, "--grace-ms", "0")[0]
    read = acknowledged.judge(0)
    assert read < acknowledged.count(0) * 0.7
    left = [each.name for each in (broker.root / "remote" / ".keeplast").rglob("*")]
    assert [] == [each for each in left if each.startswith("work-")]
