"""``hf://owner/name`` against a local server: what is fetched, how much of it, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mila import BuildContext, RuntimeMode
from mila.errors import CheckpointError, ConfigurationError, MilaError, UnknownArchitectureError
from mila.models import LlamaConfig, LlamaTransformer
from mila.planning import hub_files
from mila.planning.report import TargetKind
from mila.planning.targets import read_target
from tests.cli.commands import mila_here
from tests.models.clip_cases import CLIP_GOLDEN
from tests.models.folder_cases import GOLDEN
from tests.models.running import edited
from tests.planning.hub_server import COMMIT, Fault, Hub

package: Any = pytest.importorskip("huggingface_hub")
constants: Any = pytest.importorskip("huggingface_hub.constants")

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def refused(spec: str, kind: type[MilaError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        read_target(spec)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "golden"), [("tests/sharded", "llama_tied_llama3"), ("tests/single", "gpt2_tied")])
def test_a_model_of_the_hub_is_that_of_its_folder(hub: Hub, name: str, golden: str) -> None:
    target, folder = read_target(f"hf://{name}"), read_target(str(GOLDEN / golden))
    assert (target.kind, target.name) == (TargetKind.HUB, name)
    assert (target.config, target.stored, target.notes) == (folder.config, folder.stored, folder.notes)


@pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/1", COMMIT])
def test_all_files_are_those_of_one_commit(hub: Hub, revision: str) -> None:
    assert read_target(f"hf://tests/sharded@{revision}").stored is not None
    first, *others = (path for path, _ in hub.requests)
    assert first == f"/api/models/tests/sharded/revision/{revision}"
    assert all(f"/resolve/{COMMIT}/" in path for path in others)


def test_of_a_sharded_checkpoint_the_headers_are_fetched_and_never_the_weights(hub: Hub, tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=9000, embedding_dim=96, num_layers=3, num_heads=4, hidden_dim=512, max_seq_len=64)
    network = LlamaTransformer("model", config, device="cpu")
    network.build(BuildContext((1, 8), RuntimeMode.INFERENCE, initialize_parameters=True))
    folder = hub.folders["tests/large"] = tmp_path / "large"
    network.save_pretrained(folder, max_shard_size="4MB")
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    assert len(sizes) == 3
    assert max(sizes.values()) > 3_000_000
    target = read_target("hf://tests/large")
    assert target.stored is not None
    assert target.stored.nbytes == 4 * network.parameter_count()
    assert {name: hub.sent[name] for name in sizes} == dict.fromkeys(sizes, 1 << 16)
    files = {file.name for file in folder.iterdir()}
    assert {name for name in hub.sent if name} == {"config.json", INDEX, *sizes} <= files


def test_a_header_longer_than_the_first_request_is_fetched_in_two(hub: Hub) -> None:
    folder = hub.folders["tests/single"]
    pad_header(folder / SINGLE, 200_000)
    assert read_target("hf://tests/single").stored == read_target(str(folder)).stored
    asked = [headers["Range"] for path, headers in hub.requests if path.endswith(SINGLE)]
    assert asked == ["bytes=0-65535", "bytes=65536-200007"]


def pad_header(file: Path, length: int) -> None:
    """Give a safetensors file a header of this length, by spaces at its end."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    file.write_bytes(length.to_bytes(8, "little") + content[8:end].ljust(length) + content[end:])


def test_headers_of_all_shards_together_have_a_limit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mila.planning.hub_files._LARGEST_HEADERS", 2000)
    refused(
        "hf://tests/sharded", CheckpointError, f"{INDEX}: expected headers of at most 2000 bytes together, got more"
    )


def test_of_many_shards_few_headers_are_held_at_once(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, count = tmp_path / "many", 40
    folder.mkdir()
    hub.folders["tests/many"] = folder
    shutil.copy(GOLDEN / "llama_grouped" / "config.json", folder)
    index = {}
    for number in range(count):
        index[f"t{number}"] = f"s{number:02}.safetensors"
        save_file({f"t{number}": np.ones(1, np.float32)}, folder / index[f"t{number}"])
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    held: list[weakref.ref[Any]] = []
    most, read = 0, hub_files._read_header

    def watched(*arguments: Any) -> Any:
        nonlocal most
        found = read(*arguments)
        held.append(weakref.ref(found))
        most = max(most, sum(each() is not None for each in held))
        return found

    monkeypatch.setattr(hub_files, "_read_header", watched)
    seen: list[tuple[int, int]] = []
    with pytest.raises(CheckpointError, match="does not fit model"):
        read_target("hf://tests/many", on_header=lambda done, total: seen.append((done, total)))
    assert seen == [(number, count) for number in range(1, count + 1)]
    assert most <= 10


def test_a_header_of_more_than_its_share_is_refused(hub: Hub) -> None:
    pad_header(hub.folders["tests/single"] / SINGLE, 900_001)
    refused("hf://tests/single", CheckpointError, "expected a header of at most 900000 bytes, got 900001")
    assert hub.sent[SINGLE] <= 1 << 16


@pytest.mark.parametrize("spec", ["hf://", "hf://a/b/c", "hf://tests/single@", "hf://tests /single", "hf://../single"])
def test_names_that_are_none_are_refused_before_anybody_is_asked(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    for is_offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        refused(spec, ConfigurationError, "hf://")
    assert hub.requests == []


def test_a_model_that_mila_lacks_is_refused_by_its_config_alone(hub: Hub) -> None:
    hub.faults["config.json"] = Fault(body=b'{"model_type": "bert"}')
    refused("hf://tests/sharded", UnknownArchitectureError, "^hf://tests/sharded/config.json: .* got 'bert'")
    assert set(hub.sent) == {"", "config.json"}


def test_a_text_encoder_of_the_hub_is_planned_and_has_no_head(hub: Hub) -> None:
    hub.folders["tests/clip"] = CLIP_GOLDEN / "whole_old"
    target, folder = read_target("hf://tests/clip"), read_target(str(CLIP_GOLDEN / "whole_old"))
    assert (target.config, target.stored, target.notes) == (folder.config, folder.stored, folder.notes)
    with pytest.raises(ConfigurationError, match=r"^hf://tests/clip/config.json: a text encoder has no head"):
        read_target("hf://tests/clip", tie_word_embeddings=True)


DENIED: list[tuple[str, Fault, str]] = [
    ("", Fault(status=404, code="RepoNotFound"), r"single: expected a model on the hub, got none of that name"),
    ("", Fault(status=404), "got none of that name .*HF_TOKEN"),
    ("", Fault(status=404, code="RevisionNotFound"), "got no 'main' on the hub"),
    ("", Fault(status=500), "expected an answer of the hub, got status 500"),
    ("", Fault(status=503, body=b"<html>"), "status 503"),
    ("config.json", Fault(status=403, code="GatedRepo"), "expected access, got a gated model; accept its terms at"),
    ("config.json", Fault(status=403), "a refusal .status 403.; check the rights of HF_TOKEN"),
    ("config.json", Fault(status=429), "too many requests .status 429.; wait, or set HF_TOKEN"),
    (SINGLE, Fault(status=416), "status 416"),
    (SINGLE, Fault(cut_after=100), "a failed connection"),
    ("config.json", Fault(cut_after=20), "a failed connection"),
    ("", Fault(status=200, cut_after=0), "a failed connection"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "fault", "message"), DENIED, ids=[message[:40] for *_, message in DENIED])
def test_a_hub_that_does_not_answer_is_one_line(hub: Hub, file: str, fault: Fault, message: str) -> None:
    hub.faults[file] = fault
    refused("hf://tests/single", ConfigurationError, message)


def test_a_silent_hub_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.faults[""] = Fault(silent=30)
    refused("hf://tests/single", ConfigurationError, r"got none within 0.2 s \(HF_HUB_DOWNLOAD_TIMEOUT\)")


def test_a_hub_that_never_comes_to_an_end_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mila.planning.hub_requests._MOST_SECONDS", 2.0)
    hub.faults["config.json"] = Fault(drips=0.1)
    refused("hf://tests/single", ConfigurationError, "config.json: expected an answer within 2 s, got a part of it")


def test_all_answers_together_have_a_limit_of_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mila.planning.hub_requests._MOST_SECONDS_ALTOGETHER", 0.5)
    hub.faults["config.json"] = Fault(silent=1.0)
    message = "expected all answers of the hub within 0.5 s, got a part of them"
    refused("hf://tests/single", ConfigurationError, message)
    hub.faults["config.json"] = Fault(drips=0.1)
    refused("hf://tests/single", ConfigurationError, f"config.json: {message}")


def test_nobody_at_the_address_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused("hf://tests/single", ConfigurationError, "got no connection to http://127.0.0.1:9")
    monkeypatch.setattr(constants, "ENDPOINT", "no address")
    refused("hf://tests/single", ConfigurationError, "got a failed connection")


HTML = b"<!DOCTYPE html><title>Sign in</title>"
LIES: list[tuple[str, Fault, str]] = [
    ("", Fault(body=HTML), "description of the model that starts with '{', got HTML"),
    ("", Fault(body=b"{}"), "expected a list of the model's files, got None"),
    ("", Fault(body=b'{"siblings": [3], "sha": "0"}'), "expected a list of the model's files"),
    ("", Fault(body=b'{"siblings": [], "sha": "../x"}'), "expected the commit of the revision, got '../x'"),
    ("", Fault(status=206), "expected the file, got status 206"),
    ("config.json", Fault(body=HTML), "expected a model config that starts with '{', got HTML"),
    ("config.json", Fault(body=b"{" + b" " * 1_000_001), "expected at most 1000000 bytes, got more"),
    ("config.json", Fault(body=b'{"model_type": "gpt2", "model_type": "llama"}'), "the key 'model_type' twice"),
    (INDEX, Fault(body=HTML), "expected a index that starts with '{', got HTML"),
    (INDEX, Fault(body=b'{"weight_map": 3}'), "expected a weight_map"),
    (INDEX, Fault(body=b'{"weight_map": {"a": "../../etc/passwd"}}'), r"expected the shard '../../etc/passwd', got no"),
    (SHARDS[0], Fault(body=HTML), "Content-Range|expected the bytes from 0 on"),
    (SHARDS[0], Fault(status=200, body=HTML * 2000), "expected 65536 bytes of it, got all of it, status 200"),
    (SHARDS[0], Fault(headers={"Content-Range": "bytes 0-9/10"}), "expected the bytes from 0 on, .* got bytes 0-9/10"),
    (SHARDS[0], Fault(headers={"Content-Range": "bytes */10"}), r"got Content-Range 'bytes \*/10'"),
    (SHARDS[0], Fault(status=404, code="EntryNotFound"), "expected a file of the model, got no such file on the hub"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "fault", "message"), LIES, ids=[message[:40] for *_, message in LIES])
def test_a_hub_that_lies_is_refused(hub: Hub, file: str, fault: Fault, message: str) -> None:
    hub.faults[file] = fault
    refused("hf://tests/sharded", CheckpointError, message)


def test_a_wrong_size_contradicts_the_header(hub: Hub) -> None:
    size = (hub.folders["tests/single"] / SINGLE).stat().st_size
    pad_header(hub.folders["tests/single"] / SINGLE, 70_000)
    hub.faults[SINGLE] = Fault(headers={"Content-Range": f"bytes 0-65535/{size + 70_000 + 5}"})
    refused("hf://tests/single", CheckpointError, "expected the bytes from 65536 on|bytes of data")


def test_a_server_that_ignores_ranges_is_refused_and_not_read_to_the_end(hub: Hub) -> None:
    file = hub.folders["tests/single"] / SINGLE
    hub.faults[SINGLE] = Fault(ignores_range=True)
    assert read_target("hf://tests/single").stored is not None  # the whole file is shorter than what was asked for
    file.write_bytes(file.read_bytes() + bytes(50_000_000))
    hub.sent.clear()
    refused("hf://tests/single", CheckpointError, "download the model and name its folder")
    assert hub.sent[SINGLE] < 20_000_000


def test_a_file_that_changes_meanwhile_is_refused(hub: Hub) -> None:
    pad_header(hub.folders["tests/single"] / SINGLE, 70_000)
    hub.faults[SINGLE] = Fault(changes=True)
    refused("hf://tests/single", CheckpointError, "it changed meanwhile")


def test_index_and_shards_that_disagree_are_refused(hub: Hub) -> None:
    path = hub.folders["tests/sharded"] / INDEX
    index = json.loads(path.read_text())
    name, shard = next(iter(index["weight_map"].items()))
    other = next(each for each in SHARDS if each != shard)
    for change, message in (
        ({name: other}, f"tensor '{name}': expected it in '{other}', got it in '{shard}'"),
        ({name: REMOVED}, f"tensor '{name}': expected an entry in the index, got one in '{shard}'"),
        ({"more": shard}, "tensor 'more': expected it in .*, got no such tensor there"),
        ({"more": "model-00004-of-00004.safetensors"}, "expected the shard 'model-00004-of-00004.safetensors'"),
    ):
        changed = {key: value for key, value in (index["weight_map"] | change).items() if value is not REMOVED}
        path.write_text(json.dumps(index | {"weight_map": changed}))
        refused("hf://tests/sharded", CheckpointError, message)


REMOVED = object()


def test_weights_that_do_not_fit_the_config_are_refused_as_those_of_a_folder_are(hub: Hub, tmp_path: Path) -> None:
    folder = hub.folders["tests/wrong"] = edited(tmp_path / "wrong", "llama_grouped", intermediate_size=15)
    refused("hf://tests/wrong", CheckpointError, r"^hf://tests/wrong/model.safetensors: does not fit model: .*expected")
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("removed", "added", "note"),
    [
        ([SINGLE], ["pytorch_model.bin"], r"neither model.safetensors nor its index, \['pytorch_model.bin'\] not read"),
        ([SINGLE], [], "neither model.safetensors nor its index, no weights: planned from the config alone"),
        ([], [INDEX], "both model.safetensors and model.safetensors.index.json on the hub: neither was read"),
    ],
)
def test_without_safetensors_the_config_is_planned_alone(
    hub: Hub, removed: list[str], added: list[str], note: str
) -> None:
    folder = hub.folders["tests/single"]
    for name in removed:
        (folder / name).unlink()
    for name in added:
        (folder / name).write_bytes(b"PK\3\4")
    target = read_target("hf://tests/single")
    assert target.stored is None
    assert re.search(note, target.notes[-1])
    assert set(hub.sent) == {"", "config.json"}


def test_without_a_config_nothing_can_be_told(hub: Hub) -> None:
    """As of a folder: nothing here is malformed."""
    (hub.folders["tests/single"] / "config.json").unlink()
    words = "hf://tests/single: expected a model with config.json, got 1 other file"
    refused("hf://tests/single", ConfigurationError, f"^{words}$")
    result = mila_here("plan", "hf://tests/single")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"mila: {words}\n")


def test_gguf_files_of_the_hub_are_for_a_download(hub: Hub) -> None:
    folder = hub.folders["tests/single"]
    (folder / "config.json").rename(folder / "model.Q4_K.gguf")
    message = r"with config.json, got GGUF files: \['model.Q4_K.gguf'\]; download one of the GGUF files and name it"
    refused("hf://tests/single", ConfigurationError, message)


def test_the_token_goes_to_the_hub_and_not_where_it_sends_to(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    refused("hf://tests/sharded", ConfigurationError, "a private model needs HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults = {name: Fault(redirects=True) for name in SHARDS}
    assert read_target("hf://tests/sharded").stored is not None
    elsewhere = [headers for path, headers in hub.requests if path.startswith("/cdn/")]
    assert len(elsewhere) == 3
    assert not any("Authorization" in headers for headers in elsewhere)


def test_a_token_is_never_in_a_message(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret\x01")
    with pytest.raises(ConfigurationError) as caught:
        read_target("hf://tests/sharded")
    assert "cret" not in str(caught.value)


def test_offline_the_cache_is_read(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("config.json", SINGLE):
        package.hf_hub_download("tests/single", name, cache_dir=tmp_path / "cache")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    target = read_target("hf://tests/single")
    assert (target.kind, target.name) == (TargetKind.HUB, "tests/single")
    assert target.stored == read_target(str(GOLDEN / "gpt2_tied")).stored
    assert target.notes[-1] == "HF_HUB_OFFLINE is set: read from the cache of the hub"
    refused("hf://tests/sharded", ConfigurationError, "got the offline mode; unset HF_HUB_OFFLINE, or name a folder")
    assert hub.requests == []


def test_the_environment_is_that_of_the_package(hub: Hub, tmp_path: Path) -> None:
    program = "from mila.planning.targets import read_target; print(read_target('hf://tests/sharded').stored.nbytes)"
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_from_outside"}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "9504"), done.stderr
    assert {headers.get("Authorization") for _, headers in hub.requests} == {"Bearer hf_from_outside"}


def test_without_the_package_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(
        "hf://tests/single",
        ConfigurationError,
        r"needs the package huggingface_hub: pip install 'huggingface_hub>=1.0'",
    )


def test_a_package_that_is_too_old_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "__version__", "0.36.2")
    refused("hf://tests/single", ConfigurationError, r"expected huggingface_hub 1.0 or newer, got 0.36.2: pip install")


def test_whatever_the_hub_sends_is_a_target_or_one_line(hub: Hub) -> None:
    random = np.random.default_rng(0)
    folder = hub.folders["tests/sharded"]
    outcomes = []
    for number in range(60):
        name = ["config.json", INDEX, *SHARDS][number % 5]
        content = bytearray((folder / name).read_bytes())
        content[random.integers(len(content))] = random.integers(256)
        hub.faults = {name: Fault(body=bytes(content))}
        try:
            outcomes.append(read_target("hf://tests/sharded").kind is TargetKind.HUB)
        except MilaError as error:
            assert "\n" not in str(error)
            outcomes.append(False)
    assert 10 < sum(outcomes) < 50
