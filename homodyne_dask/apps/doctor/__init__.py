"""What `homodyne-dask doctor` checks: machine, environment, rates, and whether a local cluster starts."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One check: its name, its result, and the remedy where something is wrong."""

    what: str
    value: str
    advice: str = ""
    """Empty where nothing has to be done."""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice

    def __str__(self) -> str:
        text = f"{self.what:<20} {self.value:<58} {'ok' if self.ok else 'to do:'}"
        return f"{text} {self.advice}".rstrip()

    def as_json(self) -> dict[str, str | bool]:
        """Return the finding as a JSON object."""
        return asdict(self) | {"ok": self.ok}
