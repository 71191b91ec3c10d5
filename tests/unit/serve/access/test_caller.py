"""Caller: what is charged is kept or given back, whatever is cancelled meanwhile."""

import asyncio

import pytest

from serve.access.api_keys import Quota
from serve.access.caller import Caller
from serve.access.quotas import LocalQuotas, QuotaDecision
from serve.errors import ApiError

STEPS = 3  # of a store whose answer takes so many turns of the loop


class RemoteQuotas(LocalQuotas):
    """Counts at once; its answers come some turns of the loop later, as those of a store do."""

    async def charge_characters(self, key: str, quota: Quota, characters: int, token: str = "") -> QuotaDecision:
        decision = await super().charge_characters(key, quota, characters, token)
        for _ in range(STEPS):
            await asyncio.sleep(0)
        return decision


@pytest.mark.parametrize("turns", range(STEPS + 6))
@pytest.mark.parametrize("keeps", [False, True])
def test_a_charge_is_kept_or_given_back_wherever_it_is_cancelled(turns: int, keeps: bool):
    caller = Caller("anna", quota=Quota(characters_a_day=100), quotas=RemoteQuotas())
    kept = False

    async def work() -> None:
        nonlocal kept
        async with caller.charged(12) as charge:
            await asyncio.sleep(0)
            if keeps:
                charge.keep()
                kept = True
            await asyncio.sleep(0)

    async def run() -> None:
        task = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(STEPS + 6):
            await asyncio.sleep(0)  # an answer may still be on its way
        assert await caller.characters_today() == (12 if kept else 0)

    asyncio.run(run())


def test_a_charge_that_does_not_fit_is_refused_whole():
    caller = Caller("anna", quota=Quota(characters_a_day=10), quotas=LocalQuotas())

    async def run() -> None:
        with pytest.raises(ApiError) as refusal:
            async with caller.charged(12):
                raise AssertionError("it was let in")
        assert refusal.value.spec.code == "quota_exceeded"
        assert await caller.characters_today() == 0

    asyncio.run(run())
