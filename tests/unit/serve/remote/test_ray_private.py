"""Replica stop: conversations hear of it, and where no replica is nothing stops."""

import asyncio
from types import SimpleNamespace

import pytest
from ray._private import worker

from serve.config.app_config import ConversationsConfig
from serve.deployments import ingress_setup
from serve.remote.ray_private import is_stopping
from serve.speech.conversation.conversation import Conversation, Conversations
from serve.speech.job import RequestContext
from tests.support.fakes import Speaker, make_speech_services


def serving(*, stops: bool) -> SimpleNamespace:
    """A process of Ray with Serve's replica in it."""
    replica = SimpleNamespace(_replica_impl=SimpleNamespace(_shutting_down=stops))
    return SimpleNamespace(connected=True, actor_id="a", actors={"a": replica})


def test_the_flag_is_that_of_serves_replica_in_this_process(monkeypatch: pytest.MonkeyPatch):
    assert not is_stopping(), "there is none"
    for stops in (False, True):
        monkeypatch.setattr(worker, "global_worker", serving(stops=stops))
        assert is_stopping() == stops


def test_conversations_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "global_worker", serving(stops=True))
    monkeypatch.setattr(ingress_setup, "LOOK_S", 0.0)
    conversations = Conversations(ConversationsConfig())

    async def run() -> None:
        async def emit(event: object) -> None: ...

        services = make_speech_services(Speaker())
        conversation = Conversation(services, conversations.config, RequestContext("talk"), emit)
        with conversations.joined(conversation):
            looking = asyncio.create_task(ingress_setup.leave_when_stopped(conversations))
            await asyncio.wait_for(conversation.leaving.wait(), 20)
            looking.cancel()

    asyncio.run(run())
