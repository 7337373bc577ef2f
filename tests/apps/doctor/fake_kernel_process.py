"""A stand-in for the process that runs the kernel."""

from homodyne_dask.apps.doctor.kernel_process import KernelProcessError


class FakeKernelProcess:
    """A process whose answers depend on HARM and XLA_FLAGS in its environment."""

    def __init__(self, environment):
        self.environment = environment

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self):
        if "XLA_FLAGS" in self.environment:
            raise KernelProcessError("Unknown flag in XLA_FLAGS: --gone")
        refused = {"xla_new": "No such option"} if self.environment.get("HARM") else {}
        error = 1.0 if self.environment.get("HARM") else 1e-16
        moments = "AAAAAAAA8D8=" if self.environment.get("HARM") else "AAAAAAAAAEA="
        return {
            "first": 1.0,
            "pairs": 10**7,
            "moments": moments,
            "error": error,
            "pool": 1,
            "unknown_options": refused,
        }

    def seconds(self, threads, passes):
        return threads * passes * (0.2 if self.environment.get("HARM") else 0.1)
