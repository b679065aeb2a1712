"""A mirror, which copies the metrics of a run to a file with one JSON object per line."""

import json


class JsonLines:
    def __init__(self, folder, name, project, settings):
        self.file = (folder / f"{project}-{name}.jsonl").open("w", encoding="utf-8")
        self.file.write(json.dumps({"settings": {key: str(value) for key, value in settings.items()}}) + "\n")

    def write(self, step, values, task):
        self.file.write(json.dumps({"step": step, "task": task, **values}) + "\n")

    def end(self):
        self.file.close()
