"""One line of what the doctor says."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Line:
    """A thing looked at, what was found, and what to do where it is not well."""

    what: str
    value: str
    advice: str = ""
    """Empty where all is well."""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice

    def __str__(self) -> str:
        text = f"{self.what:<20} {self.value:<58} {'ok' if self.ok else 'look at this:'}"
        return f"{text} {self.advice}".rstrip()

    def as_json(self) -> dict[str, str | bool]:
        """Return the line for machines."""
        return asdict(self) | {"ok": self.ok}
