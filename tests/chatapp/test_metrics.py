"""What the engine counts, told three ways: the engine page, /metrics and docs/METRICS.md. And who is told."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from chatapp import llm, machine, metrics
from chatapp.admin.engine_numbers import by_cause, cards, duration
from chatapp.models import User
from inference.engine.llm_engine import LLMEngine
from inference.engine.worker import Worker
from inference.types import FinishedEvent, Request
from tests.chatapp.fake_worker import FakeWorker
from tests.conftest import ROOT
from tests.inference import fakes
from tests.inference.fake_models import make_worker

pytestmark = pytest.mark.django_db

TOKEN = "a-token-of-some-length"
DOCUMENT = (ROOT / "docs" / "METRICS.md").read_text()


# --- a real engine behind the door ------------------------------------------------------------------------------------


class Served:
    """An engine of the marker model as the one model of this process."""

    def __init__(self, **config: Any) -> None:
        self.engine: LLMEngine = fakes.make_engine(fakes.MarkerModel(max_position_embeddings=2048), **config)
        self.worker: Worker = make_worker({"m": self.engine})

    def ask(self, *requests: Request) -> None:
        """All at once; returns when all have ended."""
        ends = [threading.Event() for _ in requests]
        for request, end in zip(requests, ends, strict=True):
            self.worker.submit("m", request, lambda event, end=end: self._note(event, end))
        assert all(end.wait(60) for end in ends)
        self.worker._call(lambda: None)  # the numbers of the last step are there

    @staticmethod
    def _note(event: object, end: threading.Event) -> None:
        if isinstance(event, FinishedEvent):
            end.set()


@pytest.fixture
def serve() -> Iterator[Any]:
    def start(**config: Any) -> Served:
        served = Served(**config)
        llm.start(served.worker, default_model="m")
        while served.worker.model("m").state in ("waiting", "loading"):
            served.worker._call(lambda: None)
        return served

    yield start
    assert llm.shutdown(20)
    llm.host.handle.worker, llm.host.handle.default_model = None, ""  # as in a process that has never had one


def page_of(client: Client) -> str:
    """The text of the engine page, every run of blanks one blank."""
    html = client.get(reverse("admin:engine"), {"model": "m"}).content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def scraped(client: Client) -> dict[tuple[str, ...], float]:
    """(name, value of the label beside model) -> value."""
    text = client.get(reverse("metrics")).content.decode()
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "model")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_three_prompts_of_a_thousand_tokens_with_900_reused_twice_show_sixty_percent(staff: Client, serve: Any) -> None:
    served = serve(pool_tokens=4096, max_batch_tokens=512)
    head, ends = [1 + i % 250 for i in range(900)], "xyz"
    for n, end in enumerate(ends):
        served.ask(fakes.make_request(f"turn {n}", [*head, *[ord(end)] * 100], max_tokens=1))
    page = page_of(staff)
    assert page.count("60.0 % (1,800 of 3,000)") == 2  # since it was loaded, and of the last 1,000 requests
    assert page.count("66.7 % (2 of 3)") == 2
    assert page.count("60.0 % (450 of 750)") == 2  # blocks of 4
    found = scraped(staff)
    by_source = [found["recollect_prompt_tokens_total", source] for source in ("ram", "disk", "computed")]
    assert by_source == [1800, 0, 1200]
    assert (found["recollect_lookups_total",], found["recollect_lookups_hit_total",]) == (3, 2)
    assert (found["recollect_prompt_blocks_total",], found["recollect_prompt_blocks_hit_total",]) == (750, 450)
    assert found["recollect_prefill_saved_seconds_total",] > 0


def test_the_second_look_up_of_a_preempted_request_is_counted_apart(staff: Client, serve: Any) -> None:
    served = serve(pool_tokens=48, max_running=2)
    served.ask(
        fakes.make_request("a", "x" * 20, max_tokens=20),
        fakes.make_request("b", "y" * 20, max_tokens=20),
    )
    found = scraped(staff)
    num_relookups = found["recollect_relookups_total",]
    assert num_relookups == found["recollect_preemptions_total",] > 0
    assert found["recollect_prompt_tokens_total", "computed"] == 40
    assert found["recollect_prompt_tokens_total", "ram"] == 0
    assert (found["recollect_lookups_total",], found["recollect_lookups_hit_total",]) == (2, 0)
    num_found, num_looked_up = (found[f"recollect_relookup_tokens{end}_total",] for end in ("_hit", ""))
    assert num_looked_up >= 20 * num_relookups
    page = page_of(staff)
    assert page.count("0.0 % (0 of 40)") == 2
    assert f"Second look-ups {num_relookups:.0f} " in page
    assert f"({num_found:.0f} of {num_looked_up:.0f})" in page


def test_page_and_address_say_the_same_about_the_pool(staff: Client, serve: Any) -> None:
    served = serve(pool_tokens=128)
    served.ask(fakes.make_request("a", "hello world!", max_tokens=1))
    found = scraped(staff)
    blocks = {state: found["recollect_blocks", state] for state in ("used", "cached", "free")}
    assert blocks == {"used": 0, "cached": 3, "free": 29}
    page = page_of(staff)
    for shown in ("In use 0 (0.00 %)", "Cached 3 (9.38 %)", "Free 29 (90.62 %)", "Tokens in a block 4 "):
        assert shown in page
    resident = found["process_resident_memory_bytes",]
    assert resident == pytest.approx(machine.resident_bytes(), rel=0.2)


def test_ages_of_evicted_blocks_are_a_histogram(staff: Client, serve: Any) -> None:
    served = serve(pool_tokens=64)
    for n in range(4):
        served.ask(fakes.make_request(str(n), chr(65 + n) * 30, max_tokens=1))
    text = staff.get(reverse("metrics")).content.decode()
    (family,) = [f for f in text_string_to_metric_families(text) if f.name == "recollect_evicted_age_seconds"]
    num_evicted = served.engine.stats().cache.num_evicted_blocks
    counts = {s.labels.get("le"): s.value for s in family.samples if s.name.endswith("_bucket")}
    assert list(counts) == ["60.0", "600.0", "3600.0", "86400.0", "+Inf"]
    assert set(counts.values()) == {num_evicted} != {0}
    assert f"Evicted within 10 minutes 100.0 % ({num_evicted} of {num_evicted})" in page_of(staff)


def test_a_cache_that_is_off_is_said_to_be(staff: Client, serve: Any) -> None:
    served = serve(is_prefix_cache_enabled=False)
    for n in range(2):
        served.ask(fakes.make_request(str(n), "hello world!", max_tokens=1))
    found = scraped(staff)
    assert found["recollect_prefix_cache_enabled",] == 0
    assert found["recollect_prompt_tokens_total", "computed"] == 24
    assert "The prefix cache is switched off (RECOLLECT_PREFIX_CACHE)" in page_of(staff)


def test_a_cache_that_is_on_is_not(staff: Client, serve: Any) -> None:
    serve()
    assert scraped(staff)["recollect_prefix_cache_enabled",] == 1
    assert "switched off" not in page_of(staff)


def test_files_on_disk_are_told_about_with_their_failures(staff: Client, serve: Any, tmp_path: Path) -> None:
    served = serve(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    served.ask(fakes.make_request("a", "hello world!", max_tokens=1, tags=("c",)))
    cache = served.engine.cache
    assert served.worker._call(lambda: cache._saver.flush(20))
    (path,) = tmp_path.rglob("*.kv")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    served.worker._call(cache.forget_ram)
    served.ask(fakes.make_request("b", "hello world!", max_tokens=1, tags=("c",)))
    found = scraped(staff)
    assert found["recollect_disk_failed_restores_total", "checksum"] == 1
    assert found["recollect_disk_max_bytes",] == 1 << 20
    page = page_of(staff)
    assert "Failed restores 1 (checksum 1)" in page
    assert "/ 1.0 MB" in page


# --- one set of names -------------------------------------------------------------------------------------------------


def rows_of_the_document() -> list[list[str]]:
    """Page, address, counts, of, window, unit."""
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in DOCUMENT.splitlines() if line[:1] == "|"]
    return [row for row in rows if len(row) == 6 and row[0] not in ("on the engine page", "---")]


def documented(column: int) -> set[str]:
    cells = [row[column].replace("`", "") for row in rows_of_the_document()]
    names = {name for cell in cells for name in re.split(", (?=[A-Z])", cell) if name != "–"}
    assert len(names) > 30
    return names


def test_the_document_names_what_the_page_shows_and_nothing_else() -> None:
    disk = llm.DiskStats()
    shown = {label for card in cards(llm.EngineStats(cache=llm.CacheStats(disk=disk))) for label in card.labels}
    assert documented(0) == shown


def test_the_document_names_what_prometheus_gets_and_nothing_else(worker: FakeWorker) -> None:
    families = text_string_to_metric_families(metrics.exposition().decode())
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    others = set(re.findall(r"`(process_\w+)`", DOCUMENT))
    assert documented(1) | others == names


def test_every_other_name_in_the_document_is_one_of_these() -> None:
    named = {re.sub("_bucket$", "", name) for name in re.findall(r"recollect_\w+", DOCUMENT)}
    assert named == {name for name in documented(1) if name.startswith("recollect_")}


def test_every_row_of_the_document_has_a_window() -> None:
    windows = {row[-2] for row in rows_of_the_document()}
    assert windows == {"now", "since loading", "since loading; last 1,000 requests"}
    assert f"last {llm.NUM_RECENT:,} requests" in DOCUMENT


def test_names_follow_the_conventions() -> None:
    names = [number.name for number in metrics.NUMBERS]
    assert len(names) == len(set(names))
    assert not [name for name in names if name.endswith(("_total", "_ms", "_kb")) or name != name.lower()]
    assert all(number.help.endswith(".") for number in metrics.NUMBERS)


# --- who is told ------------------------------------------------------------------------------------------------------


def test_staff_reads_the_metrics_as_text(staff: Client, worker: FakeWorker) -> None:
    answer = staff.get(reverse("metrics"))
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'recollect_requests_running{model="fake"} 0.0' in answer.content.decode()
    assert "no-store" in answer.headers["Cache-Control"]


def test_a_process_without_an_engine_has_only_its_own_numbers(staff: Client) -> None:
    text = staff.get(reverse("metrics")).content.decode()
    assert "process_resident_memory_bytes" in text
    assert 'model="' not in text


def test_it_does_not_exist_for_people_who_are_no_staff(client: Client, alice: User) -> None:
    assert client.get(reverse("metrics")).status_code == 404
    client.force_login(alice)
    assert client.get(reverse("metrics")).status_code == 404


def test_it_does_not_exist_for_staff_that_was_locked_out(staff: Client, owner: User) -> None:
    User.objects.filter(pk=owner.pk).update(is_active=False)
    assert staff.get(reverse("metrics")).status_code == 404


def test_without_a_token_in_the_settings_no_token_opens(client: Client, settings: Any) -> None:
    assert settings.RECOLLECT_METRICS_TOKEN == ""
    for token in ("", TOKEN):
        assert client.get(reverse("metrics"), headers={"Authorization": f"Bearer {token}"}).status_code == 404


def test_the_token_opens_without_a_query(
    client: Client, settings: Any, worker: FakeWorker, django_assert_num_queries: Any
) -> None:
    settings.RECOLLECT_METRICS_TOKEN = TOKEN
    with django_assert_num_queries(0):
        answer = client.get(reverse("metrics"), headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert b"recollect_blocks" in answer.content
    assert client.get(reverse("metrics"), headers={"Authorization": f"bearer  {TOKEN} "}).status_code == 200


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer ÿ" * 9]
)
def test_another_token_is_refused_even_for_staff(staff: Client, settings: Any, header: str) -> None:
    settings.RECOLLECT_METRICS_TOKEN = TOKEN
    answer = staff.get(reverse("metrics"), headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert b"recollect_" not in answer.content


def test_with_a_token_in_the_settings_nobody_comes_without(client: Client, settings: Any) -> None:
    settings.RECOLLECT_METRICS_TOKEN = TOKEN
    assert client.get(reverse("metrics")).status_code == 404
    assert client.post(reverse("metrics"), headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 405


def test_it_tells_nothing_about_people_and_conversations(staff: Client, serve: Any) -> None:
    served = serve()
    private = {"tags": ("conversation-id",), "salt": b"salt-of-ada"}
    served.ask(fakes.make_request("request-id", "a secret text", max_tokens=2, **private))
    text = staff.get(reverse("metrics")).content.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = {label for sample in samples for label in sample.labels.items()}
    assert {name for name, _ in labels} == {"model", "state", "source", "le"}
    assert {value for name, value in labels if name == "model"} == {"m"}
    for word in ("request-id", "conversation-id", "secret", "ada"):
        assert word not in text


# --- for a person -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0.0 s"), (0.84, "0.8 s"), (9.96, "10.0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (200, "3 min 20 s")),
        *((7500, "2 h 5 min"), (3600, "1 h 0 min"), (90_061, "1 d 1 h")),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_by_cause_are_summed() -> None:
    assert by_cause({}) == "0"
    assert by_cause({"truncated": 1, "checksum": 1200}) == "1,201 (checksum 1,200, truncated 1)"


def test_a_problem_with_the_folder_stands_on_the_page() -> None:
    disk = cards(llm.EngineStats(cache=llm.CacheStats(disk_problem="kv is in use by another process")))[-1]
    assert disk.problem == "kv is in use by another process"
    assert not disk.notes
    assert cards(llm.EngineStats())[-1].notes


def test_memory_of_the_process_is_what_the_system_says(tmp_path: Path) -> None:
    assert machine.resident_bytes() > 10_000_000
    assert machine.resident_bytes(tmp_path / "statm") == 0
