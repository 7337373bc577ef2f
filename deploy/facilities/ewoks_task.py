"""A task for ewoks: a result file and a fit.yaml become the JSON of a fit.

A node of a workflow, with this folder on the path of Python:

    {"id": "fit", "task_type": "class", "task_identifier": "ewoks_task.FitResultFile",
     "default_inputs": [{"name": "fit_yaml", "value": "/data/fit.yaml"},
                        {"name": "output", "value": "/data/fits"}]}
"""

from ewokscore import Task
from fit_result_file import fit_result_file


class FitResultFile(Task, input_names=["source", "fit_yaml", "output"], output_names=["fit"]):
    """The inputs are those of `fit_result_file`, and `fit` is what it returns."""

    def run(self) -> None:
        """Fit; bad input is an error of the task, with the sentence of the command."""
        given = self.inputs.source, self.inputs.fit_yaml, self.inputs.output
        self.outputs.fit = fit_result_file(*given)
