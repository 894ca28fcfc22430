"""Small parts of files on the Hugging Face hub: every request has a limit of bytes and of time, none reads weights.

The session, the address of the hub, the token and the offline mode are those of the package ``huggingface_hub``, with
its environment variables (``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_HUB_DOWNLOAD_TIMEOUT``). Its own
functions for headers of safetensors read whole files from servers that ignore ranges, and do not learn their sizes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import quote

from mila.errors import CheckpointError, ConfigurationError, MilaError
from mila.serialization.failures import refusal, shown

#: For one answer, and for all that is asked about one model.
_MOST_SECONDS, _MOST_SECONDS_ALTOGETHER = 60.0, 300.0
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_PARTIAL, _OK = 206, 200


@dataclass(frozen=True)
class FilePart:
    """The first bytes of a file, or some further ones.

    Attributes:
        content: the bytes.
        file_size: of the whole file.
        tag: of its version, where the server gives one.
    """

    content: bytes
    file_size: int
    tag: str | None


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes
    is_longer: bool


class HubRepository:
    """One revision of a model on the hub; five minutes after it was made it asks nothing more.

    Args:
        name: owner and name.
        revision: a branch, a tag or a commit.
        package: ``huggingface_hub``.
    """

    def __init__(self, name: str, revision: str, package: ModuleType) -> None:
        self.name, self._asked, self._revision = name, revision, revision
        self._package = package
        self._deadline = time.monotonic() + _MOST_SECONDS_ALTOGETHER
        self._headers = {"User-Agent": "mila", "Accept-Encoding": "identity"}
        token = None if package.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else package.get_token()
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @property
    def place(self) -> str:
        """What errors call it."""
        return f"hf://{self.name}" + ("" if self._asked == "main" else f"@{self._asked}")

    def place_of(self, file: str) -> str:
        """What errors call one of its files."""
        return f"{self.place}/{file}"

    def pin(self, commit: str) -> None:
        """Read from now on what the revision is at this commit, so that all files are of one state."""
        self._revision = commit

    def read_information(self, limit: int) -> bytes:
        """What the hub says about the repository, as JSON of at most ``limit`` bytes."""
        endpoint = self._package.constants.ENDPOINT
        url = f"{endpoint}/api/models/{self.name}/revision/{quote(self._revision, safe='')}"
        return self._read_whole(url, self.place, limit)

    def read_file(self, file: str, limit: int) -> bytes:
        """A file of at most ``limit`` bytes."""
        return self._read_whole(self._url(file), self.place_of(file), limit)

    def read_part(self, file: str, first: int, count: int) -> FilePart:
        """At most ``count`` bytes of a file, from ``first`` on: fewer where it ends.

        Raises:
            CheckpointError: there is no such file, or the server answers with anything else than this part of it.
            ConfigurationError: the hub cannot be asked, or does not answer.
        """
        place = self.place_of(file)
        answer = self._get(self._url(file), place, count, {"Range": f"bytes={first}-{first + count - 1}"})
        tag = answer.headers.get("ETag")
        if answer.status == _OK and not answer.is_longer and first == 0:
            return FilePart(answer.content, len(answer.content), tag)  # the whole of a short file
        if answer.status != _PARTIAL:
            hint = "this server cannot give parts of files; download the model and name its folder"
            raise refusal(place, expected=f"{count} bytes of it", got=f"all of it, status {answer.status}", hint=hint)
        said = answer.headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(said)
        expected = f"the bytes from {first} on, with the size of the file"
        if found is None:
            raise refusal(place, expected=expected, got=f"Content-Range {shown(said)}")
        begin, last, size = (int(each) for each in found.groups())
        is_asked = begin == first and last == min(first + count, size) - 1
        if not is_asked or answer.is_longer or len(answer.content) != last + 1 - begin:
            raise refusal(place, expected=expected, got=f"{said} and {_shown_length(answer)}")
        return FilePart(answer.content, size, tag)

    def _url(self, file: str) -> str:
        url: str = self._package.hf_hub_url(self.name, file, revision=self._revision)
        return url

    def _read_whole(self, url: str, place: str, limit: int) -> bytes:
        answer = self._get(url, place, limit, {})
        if answer.status != _OK:
            raise refusal(place, expected="the file", got=f"status {answer.status}")
        if answer.is_longer:
            raise refusal(place, expected=f"at most {limit} bytes", got="more")
        return answer.content

    def _get(self, url: str, place: str, limit: int, headers: Mapping[str, str]) -> _Answer:
        """The start of an answer; what is longer than the limit is not read on."""
        timeout = self._package.constants.HF_HUB_DOWNLOAD_TIMEOUT
        deadline = time.monotonic() + _MOST_SECONDS
        content = bytearray()
        self._require_time(place)
        with self._reported(place, timeout):
            session = self._package.utils.get_session()
            with session.stream("GET", url, headers={**self._headers, **headers}, timeout=timeout) as response:
                self._check_status(response, place)
                for chunk in response.iter_raw():  # as it comes
                    content += chunk
                    if len(content) > limit:
                        break
                    self._require_time(place)
                    if time.monotonic() > deadline:
                        got = "a part of it"
                        raise ConfigurationError(f"{place}: expected an answer within {_MOST_SECONDS:g} s, got {got}")
                return _Answer(
                    response.status_code, response.headers, bytes(content[:limit]), is_longer=len(content) > limit
                )

    def _require_time(self, place: str) -> None:
        if time.monotonic() > self._deadline:
            limit = f"{_MOST_SECONDS_ALTOGETHER:g} s"
            raise ConfigurationError(f"{place}: expected all answers of the hub within {limit}, got a part of them")

    def _check_status(self, response: Any, place: str) -> None:
        status, code = response.status_code, response.headers.get("X-Error-Code")
        if status in (_OK, _PARTIAL):
            return
        if code == "EntryNotFound":
            raise CheckpointError(f"{place}: expected a file of the model, got no such file on the hub")
        if code == "GatedRepo":
            hint = f"accept its terms at {self._package.constants.ENDPOINT}/{self.name}, and set HF_TOKEN"
            raise ConfigurationError(f"{place}: expected access, got a gated model; {hint}")
        if code == "RevisionNotFound":
            raise ConfigurationError(f"{place}: expected a revision of the model, got no {self._asked!r} on the hub")
        if code == "RepoNotFound" or status in (401, 404):
            hint = "check the name; a private model needs HF_TOKEN"
            raise ConfigurationError(
                f"{place}: expected a model on the hub, got none of that name (status {status}); {hint}"
            )
        got = _STATUSES.get(status, f"status {status}")
        raise ConfigurationError(f"{place}: expected an answer of the hub, got {got}")

    @contextlib.contextmanager
    def _reported(self, place: str, timeout: float) -> Iterator[None]:
        """Turn what the session raises into one line; of most errors the kind alone, since headers may hold a token."""
        errors = self._package.errors
        try:
            yield
        except errors.OfflineModeIsEnabled:
            hint = "unset HF_HUB_OFFLINE, or name a folder"
            raise ConfigurationError(f"{place}: expected to ask the hub, got the offline mode; {hint}") from None
        except MilaError:
            raise
        except Exception as error:
            is_of_session = type(error).__module__.split(".")[0].startswith("httpx")
            if not is_of_session and not isinstance(error, errors.HTTPError | OSError | ValueError):
                raise
            kind = type(error).__name__
            if "Timeout" in kind:
                got = f"none within {timeout} s (HF_HUB_DOWNLOAD_TIMEOUT)"
            elif kind == "ConnectError":
                got = f"no connection to {self._package.constants.ENDPOINT}: {' '.join(str(error).split())}"
            else:
                got = f"a failed connection ({kind})"
            raise ConfigurationError(f"{place}: expected an answer of the hub, got {got}") from None


_STATUSES = {
    403: "a refusal (status 403); check the rights of HF_TOKEN",
    429: "too many requests (status 429); wait, or set HF_TOKEN",
}


def _shown_length(answer: _Answer) -> str:
    return f"more than {len(answer.content)} bytes" if answer.is_longer else f"{len(answer.content)} bytes"
