"""The events of fits as messages of Dask, which any process and any version of this package can read.

A message is a dict: 'what' (see `_EVENTS`), 'fit' (its name), 'at' (seconds since 1970), and the fields of
the event. What a receiver does not know is left out, and so are values that are of use in one process only.
"""

from dataclasses import fields
from typing import Any

from homodyne_dask import events

TOPIC = "homodyne_dask"
"""The topic of the messages among Dask's structured events: `client.get_events(TOPIC)` returns them."""
Message = dict[str, Any]

_EVENTS: dict[str, type[events.Event]] = {
    "begun": events.FitPlanned,
    "refused": events.WorkerRefused,
    "doing": events.PhaseStarted,
    "pass": events.PassStarted,
    "tiles": events.TilesDone,
    "state": events.PassEnded,
    "ended": events.FitEnded,
}
_NAMES = {events.FitFailed: "ended"} | {event: what for what, event in _EVENTS.items()}
_KEYS = {"reason": "words", "phase": "words", "name": "words"}
"""Fields that have another key in a message."""
_LOCAL = {"state", "result", "error", "resumed"}
"""Fields that are not sent."""
_OF_NO_RESULT: Message = {"reservations": [], "theta": [], "stderr": [], "compilations": 0}


def message_of(event: events.Event) -> Message | None:
    """Return the message of an event; None for one that is not sent."""
    if type(event) not in _NAMES:
        return None
    names = [field.name for field in fields(event) if field.name not in _LOCAL]
    sent = {_KEYS.get(name, name): _plain(getattr(event, name)) for name in names}
    failed = _OF_NO_RESULT if isinstance(event, events.FitFailed) else {}
    return {"what": _NAMES[type(event)]} | sent | failed


def event_of(message: Message) -> events.Event | None:
    """Return the event of a message; None for one of another version that this one does not know."""
    event = _EVENTS.get(message["what"])
    if event is None:
        return None
    given: Message = {}
    for name in (field.name for field in fields(event)):
        key = _KEYS.get(name, name)
        if key in message:
            value = message[key]
            given[name] = tuple(value) if isinstance(value, list) else value
    return event(**given)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
