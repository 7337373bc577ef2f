"""The effect of flags and variables that people copy on the kernel; takes ten minutes."""

from tests.benchmarks.flag_audit import audit, table


def run() -> dict[str, float]:
    """Print the table; return rates relative to the plain environment, 0 for what ends a process."""
    rows = []

    def kept():
        for row in audit():
            rows.append(row)
            yield row

    for line in table(kept()):
        print(line)
    found = {}
    for row in rows:
        name = row["setting"].partition(",")[0]
        if "compilations" in row:
            found |= {f"{name}: compilations": row["compilations"], f"{name}: s": row["again s"]}
        elif "pool" in row:
            found[f"{name}: M pairs/s of 2 threads"] = row["M pairs/s, 2 calling"]
        else:
            found[f"{name}: rate"] = row.get("rate x1", 0.0)
    return found
