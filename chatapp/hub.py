"""One model repository of a Hugging Face hub: which files it holds at which commit, and their bytes.

huggingface_hub speaks the hub's protocol: addresses, tokens (HF_TOKEN), HF_ENDPOINT, HF_HUB_OFFLINE, what an error
means. Its own downloads begin anew after an interruption and compare sizes only; so bytes go through here, over plain
HTTP, which every hub and mirror speaks. Knows no Django.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime

import httpx2
from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers

from chatapp.default_model import FetchError
from chatapp.hub_files import HubFile
from chatapp.logs import escaped

constants.HF_HUB_DISABLE_TELEMETRY = True  # no hub is told who runs what; else another request would be made for that

MAX_TEXT_BYTES = 4 << 20
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SECONDS = re.compile(r"[0-9]{1,9}")
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class Broken(FetchError):
    """The hub cannot be reached or has broken off; may be tried again, after wait_s seconds if it has said so."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Hub:
    """A repository at one commit. All raises FetchError, with what to do, when the hub cannot or will not answer.

    gguf_architecture: what the hub has read in a GGUF file, "" when it says nothing.
    """

    def __init__(self, repository: str, revision: str | None = None, *, endpoint: str | None = None) -> None:
        check_repository(repository)
        if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise FetchError(f"{revision!r} is no revision; legal are a branch, a tag or a commit.")
        self.repository = repository
        self.endpoint = endpoint or constants.ENDPOINT
        info = self._describe(revision)
        self.commit = str(info.sha)
        self.files = tuple(_hub_file(entry) for entry in info.siblings or ())
        self.gguf_architecture = str((info.gguf or {}).get("architecture", ""))

    def text(self, file: HubFile) -> str:
        """The content of a small file, as UTF-8."""
        if file.num_bytes > MAX_TEXT_BYTES:
            raise FetchError(f"{self.repository}: {file.path} has {file.num_bytes} bytes, legal are {MAX_TEXT_BYTES}.")
        with self.stream(file, 0) as (_, chunks):
            content = b""
            for chunk in chunks:
                content += chunk
                if len(content) > file.num_bytes:
                    raise FetchError(
                        f"{self.endpoint} sends more of {file.path} than the {file.num_bytes} bytes it listed."
                    )
            return content.decode("utf-8", "replace")

    @contextmanager
    def stream(self, file: HubFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the answer begins, and its bytes: at `start`, or at 0 where the server sends only whole files.

        Raises Broken for what may be tried again, also while the bytes are read.
        """
        url = hf_hub_url(self.repository, file.path, revision=self.commit, endpoint=self.endpoint)
        headers = build_hf_headers(library_name="recollect") | {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        with self._translated(), get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            begin = start if response.status_code == httpx2.codes.PARTIAL_CONTENT else 0
            if begin and not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
                raise FetchError(f"{self.endpoint} sends other bytes of {file.path} than were asked for.")
            yield begin, response.iter_bytes()

    def _describe(self, revision: str | None) -> ModelInfo:
        problem = f"{self.endpoint} does not answer as a Hugging Face hub does. Is HF_ENDPOINT right?"
        with self._translated(revision):
            try:
                info = HfApi(endpoint=self.endpoint).model_info(
                    self.repository,
                    revision=revision,
                    files_metadata=True,
                    timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                )
            except HfHubHTTPError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError, httpx2.InvalidURL) as error:  # of another shape
                raise FetchError(problem) from error
        if not _COMMIT.fullmatch(info.sha or ""):
            raise FetchError(problem)
        return info

    @contextmanager
    def _translated(self, revision: str | None = None) -> Iterator[None]:
        """What huggingface_hub and its client raise, as a sentence that says what to do."""
        name, hub = self.repository, self.endpoint
        try:
            yield
        except GatedRepoError as error:
            has_token = get_token() is not None
            who = "The account of this token has no access yet" if has_token else "Its authors want to know who asks"
            raise FetchError(
                f"{name} is gated. {who}: ask for access at {hub}/{name}, make a token at {hub}/settings/tokens, set "
                "HF_TOKEN to it and run this command again."
            ) from error
        except RevisionNotFoundError as error:
            raise FetchError(f"{name} has no revision {revision or self.commit}.") from error
        except RepositoryNotFoundError as error:
            raise FetchError(
                f"There is no repository {name} at {hub}; or it is private, then set HF_TOKEN to a token that may read."
            ) from error
        except HfHubHTTPError as error:
            raise self._refusal(error.response.status_code, _wait_s(error.response.headers)) from error
        except OfflineModeIsEnabled as error:
            raise FetchError(f"HF_HUB_OFFLINE is set: {hub} is not asked.") from error
        except httpx2.RequestError as error:
            reason = escaped(str(error)) or type(error).__name__
            raise Broken(
                f"{hub} cannot be reached ({reason}). Is this machine offline? Where there is no network, copy a GGUF "
                "file or a model's folder into the models folder."
            ) from error

    def _refusal(self, status: int, wait_s: float) -> FetchError:
        if status in (401, 403):
            return FetchError(
                f"{self.endpoint} refuses {self.repository} ({status}): HF_TOKEN is missing, wrong, or may not read."
            )
        if status == httpx2.codes.NOT_FOUND:
            return FetchError(f"{self.endpoint} has no {self.repository} (404). Is the name right, and HF_ENDPOINT?")
        when = f"in {wait_s:.0f} s" if wait_s else "later"
        said = f"{self.endpoint} answered {status} when asked for {self.repository}. Try again {when}."
        return Broken(said, wait_s) if status in _TRANSIENT else FetchError(said)


def check_repository(name: str) -> None:
    """Raises FetchError for what is no name of a repository: a path, an address, a file."""
    if not _REPOSITORY.fullmatch(name) or "--" in name or ".." in name or name.endswith((".git", ".gguf")):
        raise FetchError(
            f"{escaped(name)!r} is no name of a repository; they are written OWNER/NAME, such as Qwen/Qwen3-0.6B. "
            "A model that is on this machine needs no fetching: set RECOLLECT_MODEL to its path."
        )


def _wait_s(headers: Mapping[str, str]) -> float:
    """Retry-After, which is a number of seconds or a date; 0 when it says nothing that can be read."""
    stated = headers.get("Retry-After", "")
    if _SECONDS.fullmatch(stated):
        return float(stated)
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
    return 0.0


def _hub_file(entry: RepoSibling) -> HubFile:
    digest = str(entry.lfs.sha256 if entry.lfs else entry.blob_id)
    return HubFile(str(entry.rfilename), int(entry.size or 0), digest if _DIGEST.fullmatch(digest) else "")
