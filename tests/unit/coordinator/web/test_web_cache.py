"""Many askers, one answer."""

import asyncio

import pytest

from distop.coordinator.web.reads import MAX_ANSWERS, Answers
from distop.errors import EtcdUnavailable
from support.waiting import eventually


class Source:
    """Counts its calls, and answers when the test releases it."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def answer(self) -> int:
        self.asked += 1
        number = self.asked
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
async def answers():
    made = Answers()
    yield made
    await made.close()


async def test_those_who_ask_together_share_one_answer(answers):
    source = Source()
    askers = [asyncio.create_task(answers.get("k", source.answer, keep_s=60)) for _ in range(50)]
    await eventually(lambda: source.asked)
    source.open.set()
    assert await asyncio.gather(*askers) == [1] * 50
    assert await answers.get("k", source.answer, keep_s=60) == 1
    assert await answers.get("other", source.answer, keep_s=60) == 2


async def test_an_answer_grows_old(answers):
    source = Source()
    source.open.set()
    assert await answers.get("k", source.answer, keep_s=0.0) == 1
    await eventually(lambda: answers.get("k", source.answer, keep_s=0.0), holds=lambda found: found > 1)


async def test_a_cancelled_request_takes_the_answer_from_no_other(answers):
    source = Source()
    first = asyncio.create_task(answers.get("k", source.answer, keep_s=60))
    second = asyncio.create_task(answers.get("k", source.answer, keep_s=60))
    await eventually(lambda: source.asked)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    source.open.set()
    assert await second == 1


async def test_an_error_is_an_answer_too_but_not_for_long(answers):
    source = Source()
    source.error = EtcdUnavailable()
    source.open.set()
    for _ in range(2):
        with pytest.raises(EtcdUnavailable):
            await answers.get("k", source.answer, keep_s=60)
    assert source.asked == 1
    source.error = None

    async def well():
        try:
            return await answers.get("k", source.answer, keep_s=60)
        except EtcdUnavailable:
            return 0

    await eventually(well)


async def test_answers_are_bounded_in_number(answers):
    source = Source()
    source.open.set()
    for number in range(MAX_ANSWERS + 10):
        await answers.get(number, source.answer, keep_s=60)
    assert len(answers._answers) == MAX_ANSWERS
