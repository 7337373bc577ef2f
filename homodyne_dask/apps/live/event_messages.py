"""Events of fits as Dask's messages: dicts of 'what' (the class) and fields, which any version can read."""

from dataclasses import fields
from typing import Any

from homodyne_dask import events
from homodyne_dask.results.data.findings import CATALOGUE, Findings

TOPIC = "homodyne_dask"
"""The topic of the messages among Dask's structured events: `client.get_events(TOPIC)` returns them."""
Message = dict[str, Any]

_EVENTS = {one.__name__: one for one in events.Event.__subclasses__()}
_LOCAL = {"state", "result", "error", "resumed"}


def message_of(event: events.Event) -> Message:
    sent = {of.name: getattr(event, of.name) for of in fields(event) if of.name not in _LOCAL}
    plain = {name: list(one) if isinstance(one, tuple) else one for name, one in sent.items()}
    if "findings" in plain:
        plain["findings"] = [one.to_dict() for one in plain["findings"]]
    return {"what": type(event).__name__} | plain


def event_of(message: Message) -> events.Event | None:
    """Return the event of a message; None for one of another version that this one does not know."""
    event: Any = _EVENTS.get(message["what"])
    if event is None:
        return None
    given = {of.name: message[of.name] for of in fields(event) if of.name in message}
    if "findings" in given:
        known = [one for one in given["findings"] if one["code"] in CATALOGUE]
        given["findings"] = Findings.from_plain(known)
    return event(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})
