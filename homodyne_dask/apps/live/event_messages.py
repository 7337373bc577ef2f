"""Events of fits as Dask's messages: dicts of 'what' (the class) and fields, which any version can read."""

from dataclasses import fields
from typing import Any

from homodyne_dask import events
from homodyne_dask.results.data.findings import CATALOGUE, Findings

TOPIC = "homodyne_dask"
"""The topic of the messages among Dask's structured events: `client.get_events(TOPIC)` returns them."""
Message = dict[str, Any]

_EVENTS = {event.__name__: event for event in events.Event.__subclasses__()}
_LOCAL = {"state", "result", "noise", "error", "resumed"}


def message_of(event: events.Event) -> Message:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in _LOCAL
    }
    if "findings" in plain:
        plain["findings"] = [finding.to_dict() for finding in plain["findings"]]
    return {"what": type(event).__name__} | plain


def event_of(message: Message) -> events.Event | None:
    """Return the event of a message; None for one of another version that this one does not know."""
    event: Any = _EVENTS.get(message["what"])
    if event is None:
        return None
    values = {field.name: message[field.name] for field in fields(event) if field.name in message}
    if "findings" in values:
        rows = [finding for finding in values["findings"] if finding["code"] in CATALOGUE]
        values["findings"] = Findings.from_plain(rows)
    return event(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
