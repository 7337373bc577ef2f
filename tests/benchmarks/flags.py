"""What flags and variables that people copy do to the kernel; `homodyne-dask doctor --flags` too."""

from homodyne_dask.cli.doctor.audit import audit, collected, table


def run() -> dict[str, float]:
    """Print the table; return rates relative to the plain environment, 0 for what ends a process."""
    rows, measured = collected(audit())
    for line in table(measured):
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
