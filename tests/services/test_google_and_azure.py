"""``az`` on Azurite, and ``gs`` on a stand-in of ours: what keeplast rests on in any object store.

Google's own words are in the stand-in, and not its servers: see :mod:`tests.support.google_store`.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from msgspec.structs import replace

from keeplast.api.open_store import open_store
from keeplast.cluster.layouts.aiven import AivenLayout
from keeplast.cluster.layouts.open import open_layout
from keeplast.config.mapping import topic_config
from keeplast.errors import ConflictError, RefusedError, UnavailableError
from keeplast.model.document import Verdict
from keeplast.tier.objects.stores import PART_BYTES, ObstoreObjects, is_forbidden, open_tree
from tests.services.conftest import S3
from tests.services.test_attached_on_s3 import VARIANTS
from tests.support.azurite_server import ACCOUNT, KEY
from tests.support.google_store import TOKEN, own_google_store
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import PARTITION
from tests.support.plugin_tier import move_to
from tests.support.plugin_vectors import CASES, read_case, unpack_vectors
from tests.support.reader import read_partition
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, by_key_law, write_history
from tests.unit.cli.conftest import Command, keeplast

pytestmark = pytest.mark.services

# A page has 5,000 names in Azure's stores and 1,000 in Google's.
BEYOND_A_PAGE = {"az": 5001, "gs": 1001}
SECRETS = {"az": "account_key", "gs": "bearer_token"}
WRONG = {"az": "d3JvbmctYW5kLXNlY3JldA==", "gs": "ya29.wrong-and-secret"}
Open = Callable[[str], AivenLayout]

__all__ = ["keeplast"]


@pytest.fixture(params=["az", "gs"])
def bucket(request: pytest.FixtureRequest) -> S3:
    """The bucket itself."""
    name = {"az": "azure_server", "gs": "google_server"}[request.param]
    server: S3 = request.getfixturevalue(name)
    return server


@pytest.fixture
def scheme(bucket: S3) -> str:
    return bucket.url.partition("://")[0]


@pytest.fixture
def place(bucket: S3) -> S3:
    """A prefix of our own in the bucket."""
    return S3(f"{bucket.url}/{secrets.token_hex(6)}", bucket.options)


@pytest.fixture
def objects(place: S3) -> ObstoreObjects:
    return open_tree(place.url, place.options)


@pytest.fixture
def named_options(bucket: S3, scheme: str, tmp_path: Path) -> dict[str, str]:
    """The options as operators give them: the secret is in a file."""
    file = tmp_path / "secret"
    file.write_text(bucket.options[SECRETS[scheme]])
    return {**bucket.options, SECRETS[scheme]: f"@{file}"}


def keys_of(objects: ObstoreObjects, prefix: str) -> list[str]:
    return sorted(each.key for each in objects.list(prefix))


def test_an_object_is_put_where_none_is_and_by_one_of_many(objects: ObstoreObjects) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: objects.put_new("place/one", b"%d" % i), range(8)))
    assert 1 == done.count(True)
    assert b"%d" % done.index(True) == bytes(objects.read_range("place/one", 0, 9))
    assert not objects.put_new("place/one", b"late")


def test_an_object_is_replaced_by_a_writer_that_knows_it(
    objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition is the version that was read, and not only a look before."""
    assert objects.put_new("owner", b"first")
    assert not objects.replace("owner", b"third", b"second")
    assert not objects.replace("nobody", b"x", b"y")
    assert objects.replace("owner", b"second", b"first")
    put = obstore.put

    def late(store: object, path: str, data: bytes, **how: object) -> object:
        monkeypatch.undo()
        assert objects.replace("owner", b"rival", b"second")
        return put(store, path, data, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "put", late)
    assert not objects.replace("owner", b"third", b"second")
    assert b"rival" == bytes(objects.read_range("owner", 0, 10))


def test_conditions_are_found_to_be_heeded_and_nothing_is_left_of_the_probe(
    objects: ObstoreObjects,
) -> None:
    assert objects.is_conditional("probe/one")
    assert [] == keys_of(objects, "probe")


def test_a_large_object_appears_when_it_is_closed_and_is_read_by_ranges(
    objects: ObstoreObjects,
) -> None:
    data = secrets.token_bytes(PART_BYTES * 2 + 12345)
    writer, given_up = objects.open_write("a/b/one.log"), objects.open_write("a/b/never.log")
    for at in range(0, len(data), 1 << 20):
        writer.write(data[at : at + (1 << 20)])
        given_up.write(data[at : at + (1 << 20)])
    assert [] == keys_of(objects, "a")
    given_up.abort()
    writer.close()
    assert ["a/b/one.log"] == keys_of(objects, "a/b")
    assert len(data) == objects.stat("a/b/one.log").size_bytes
    for start, end in (
        (0, len(data)), (PART_BYTES - 10, PART_BYTES + 10), (len(data) - 4, len(data) + 9), (7, 7),
    ):  # fmt: skip
        assert data[start:end] == bytes(objects.read_range("a/b/one.log", start, end))


def test_listings_go_beyond_a_page_and_a_neighbour_is_in_none(
    objects: ObstoreObjects, scheme: str
) -> None:
    count = BEYOND_A_PAGE[scheme]
    names = [f"many/{number:06d}" for number in range(count)]
    objects.put_new("many-more/one", b"x")
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda name: objects.put_new(name, b"x"), names))
    assert names == keys_of(objects, "many")
    found, folders = objects.children("many")
    assert (names, ()) == (sorted(each.key for each in found), folders)
    assert {"many", "many-more"} == set(objects.children("")[1])


def test_a_deleted_object_is_gone_and_a_missing_one_is_no_error(objects: ObstoreObjects) -> None:
    """More than Azure takes in a request."""
    names = [f"old/{number:04d}" for number in range(300)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: objects.put_new(name, b"x"), [*names, "kept/one"]))
    objects.delete([names[0], "old/never", names[1]])
    assert names[2:] == keys_of(objects, "old")
    objects.delete(names[2:])
    assert ["kept/one"] == keys_of(objects, "")
    objects.delete(names[:3])
    with pytest.raises(FileNotFoundError):
        objects.stat(names[0])


def test_an_object_is_copied_inside_the_store(objects: ObstoreObjects) -> None:
    objects.put_new("a", b"content")
    objects.put_new("c", b"older")
    for target in ("b", "c"):
        objects.copy("a", target)
        assert b"content" == bytes(objects.read_range(target, 0, 99))
    with pytest.raises(FileNotFoundError):
        objects.copy("never", "d")


def test_an_object_of_a_bucket_without_versions_has_no_version(objects: ObstoreObjects) -> None:
    """Google's generation is no version in this sense."""
    objects.put_new("a", b"1")
    assert not objects.has_version("a")


def test_a_bucket_that_is_not_there_is_named_and_is_no_missing_object(
    bucket: S3, scheme: str
) -> None:
    objects = open_tree(f"{scheme}://no-such-place/p", bucket.options)
    writer = objects.open_write("b")
    writer.write(bytes(PART_BYTES // 2))
    for act in (
        lambda: list(objects.list("")), lambda: objects.put_new("a", b"1"), writer.close,
        lambda: objects.read_range("a", 0, 1), lambda: objects.is_conditional("p"),
    ):  # fmt: skip
        with pytest.raises(UnavailableError, match="no such bucket or container") as caught:
            act()
        assert f"url={scheme}://no-such-place/p" in str(caught.value)
        assert bucket.options[SECRETS[scheme]] not in str(caught.value)


def test_wrong_credentials_are_a_refusal_that_does_not_show_them(place: S3, scheme: str) -> None:
    wrong = {**place.options, SECRETS[scheme]: WRONG[scheme]}
    objects = open_tree(place.url, wrong)
    writer = objects.open_write("b")
    writer.write(b"x")
    for act in (
        lambda: list(objects.list("")), lambda: objects.put_new("a", b"1"), writer.close,
        lambda: objects.read_range("a", 0, 1), lambda: objects.stat("a"),
        lambda: objects.delete(["a"]),
    ):  # fmt: skip
        with pytest.raises(UnavailableError, match="credentials") as caught:
            act()
        assert is_forbidden(caught.value)
        assert WRONG[scheme] not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_log_is_imported_cleaned_verified_and_exported_by_commands(
    tmp_path: Path, place: S3, named_options: dict[str, str], keeplast: Command
) -> None:
    directory = write_mixed_log(tmp_path / "data")
    expected = read_partition(directory).final_values()
    given = [each for name in named_options for each in
             ("--object-option", f"{name}={named_options[name]}")]  # fmt: skip
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    settings = ["--config", "cleanup.policy=compact", "--config", "segment.bytes=700"]
    new = ["--new", "--objects", place.url, *given, *settings]
    run = keeplast("copy", tmp_path / "data", url, *new)
    assert 0 == run.code, run.err
    run = keeplast("clean", url, *given, "--despite", "dirty-ratio", "--grace-ms", 0, "--json")
    (found,) = run.document["partitions"]
    assert not found["skipped"]
    run = keeplast("verify", url, *given)
    assert f"{PARTITION}: holds" in run.out, run.err
    run = keeplast("export", url, "--as", "log", *given, "--to", tmp_path / "out")
    assert 0 == run.code, run.err
    exported = read_partition(tmp_path / "out" / str(PARTITION))
    assert expected == exported.final_values()
    assert len(exported.records()) < len(read_partition(directory).records())
    run = keeplast("clean", tmp_path / "data", "--to", f"{place.url}/copy", *given, *settings)
    assert 0 == run.code, run.err
    copied = tmp_path / "copied" / str(PARTITION)
    copied.mkdir(parents=True)
    objects = open_tree(place.url, place.options)
    for each in objects.list(f"copy/{PARTITION}"):
        data = objects.read_range(each.key, 0, each.size_bytes)
        (copied / each.key.rpartition("/")[2]).write_bytes(data)
    assert expected == read_partition(copied).final_values()
    # A second store would collect the objects of the first as garbage.
    run = keeplast("copy", tmp_path / "data", f"sqlite:///{tmp_path / 'second.db'}", *new)
    assert 4 == run.code
    assert "belong to another store" in run.err


@pytest.fixture
def open_prefix(bucket: S3, named_options: dict[str, str], tmp_path: Path) -> Open:
    """Opens the layout below a prefix."""
    unpack_vectors(tmp_path / "plugin")
    pair = "encryption.key.pairs.k1"
    options = {
        **named_options, "encryption.key.pairs": "k1", "encryption.key.pair.id": "k1",
        f"{pair}.private.key.file": str(tmp_path / "plugin" / "keys" / "private.pem"),
        f"{pair}.public.key.file": str(tmp_path / "plugin" / "keys" / "public.pem"),
    }  # fmt: skip

    def open_(prefix: str) -> AivenLayout:
        layout = open_layout(f"aiven:{bucket.url}/{prefix}", options)
        assert isinstance(layout, AivenLayout)
        return layout

    return open_


@pytest.mark.parametrize("name", [each for each in CASES if "op_ok" not in each])
def test_objects_of_the_plugin_are_read_written_and_deleted(
    name: str, bucket: S3, open_prefix: Open, tmp_path: Path
) -> None:
    prefix = f"{secrets.token_hex(6)}/some-"
    objects = open_tree(bucket.url, bucket.options)
    layout = open_prefix(prefix)
    case = read_case(tmp_path / "plugin", name)
    for suffix, data in case.objects.items():
        assert objects.put_new(prefix + case.keys[suffix].removeprefix(case.prefix), data)
    new = replace(case.segment, id=dataclasses.replace(case.segment.id, segment_id=bytes(16)))
    writer, rival = (layout.create_log(new.id, new.start_offset, case.segment) for _ in range(2))
    for each in (writer, rival):
        each.write(case.log)
    custom = layout.complete(new, writer.close(), case.auxiliary, case.segment)
    rival.write(b"other")
    with pytest.raises(ConflictError):
        rival.close()
    for segment in (case.segment, replace(new, custom_metadata=custom)):
        assert case.log == layout.open(segment).read_log(0, len(case.log))
    assert 2 == len(list(layout.list(new.id.partition)))
    assert not layout.hides_deleted(new)
    for segment in (case.segment, new, new):
        layout.delete(segment)
    assert [] == list(layout.list(new.id.partition))


def test_an_attached_round_goes_from_the_owner_object_to_verify(
    bucket: S3, open_prefix: Open, database: str, tmp_path: Path
) -> None:
    layout = open_prefix(f"{secrets.token_hex(6)}/")
    layout.check_conditions()
    directory = write_history(tmp_path / "logs", count=120)
    world = VerifiedWorld(tmp_path, directory, LINEAGE, url=database)
    move_to(world.tier, layout, open_tree(bucket.url, bucket.options), VARIANTS)
    world.world.tier = layout  # type: ignore[assignment]
    try:
        before, segments = world.tier.read().records(), world.tier.served()
        report = world.clean(MERGING, margin=4000)
        assert report.error is None, report.error
        expected = by_key_law(before, report.end_offset or 0)
        assert expected == world.tier.read().records()
        assert all(each.verdict is Verdict.HOLDS for each in world.verify(MERGING).checks)
        world.collect()
        assert expected == world.tier.read().records()
        assert len(world.tier.served()) < len(segments)
        world.world._url = None
        with pytest.raises(RefusedError, match="decision log"):
            world.world.claim(world.world.log("another.db"))
    finally:
        world.close()


def test_a_store_that_heeds_no_condition_is_refused_by_name(tmp_path: Path) -> None:
    with own_google_store("logs", heeds_conditions=False) as server:
        file = tmp_path / "token"
        file.write_text(TOKEN)
        layout = open_layout("aiven:gs://logs", {**server.options, "bearer_token": f"@{file}"})
        with pytest.raises(RefusedError, match=r"ignores If-None-Match.*url=gs://logs"):
            layout.check_conditions()
        for place in ("gs://logs/a", "gs://logs/b"):
            with pytest.raises(RefusedError, match=f"ignores the condition.*objects={place}"):
                open_store(
                    f"sqlite:///{tmp_path / 'meta.db'}",
                    place,
                    owner="a",
                    topic_of=topic_config,
                    options=server.options,
                )


def test_a_store_that_heeds_no_condition_does_not_lose_the_name_it_has(tmp_path: Path) -> None:
    with own_google_store("logs", heeds_conditions=False) as server:
        objects = open_tree("gs://logs/a", server.options)
        objects.put_new("keeplast-store", b"f" * 32)
        with pytest.raises(RefusedError, match="belong to another store"):
            open_store(
                f"sqlite:///{tmp_path / 'meta.db'}", "gs://logs/a", owner="a",
                topic_of=topic_config, options=server.options,
            )  # fmt: skip
        assert b"f" * 32 == bytes(objects.read_range("keeplast-store", 0, 99))


def test_the_environment_names_the_server(
    bucket: S3, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without TLS only where this very store is named so."""
    if scheme == "az":
        server = bucket.options["endpoint"].removesuffix(f"/{ACCOUNT}")
        ways = [
            {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": server},
            {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
             "AZURE_STORAGE_ENDPOINT": bucket.options["endpoint"]},
        ]  # fmt: skip
    else:
        account = {
            "gcs_base_url": bucket.options["base_url"], "disable_oauth": True, "client_email": "",
            "private_key": "", "private_key_id": "",
        }  # fmt: skip
        text = json.dumps(account)
        file = tmp_path / "account.json"
        file.write_text(text)
        token = {"GOOGLE_BEARER_TOKEN": TOKEN}
        ways = [
            {"GOOGLE_SERVICE_ACCOUNT_KEY": text, **token},
            {"GOOGLE_SERVICE_ACCOUNT": str(file), **token},
            {"GOOGLE_BASE_URL": bucket.options["base_url"], **token},
        ]
    for way in ways:
        with monkeypatch.context() as patch:
            for name, value in way.items():
                patch.setenv(name, value)
            objects = open_tree(f"{bucket.url}/{secrets.token_hex(6)}")
            assert objects.put_new("a", b"1")
            assert ["a"] == keys_of(objects, "")
