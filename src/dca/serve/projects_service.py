"""The projects of a workspace: which there are, and those that are open."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dca.core.errors import UserError
from dca.core.files import explain_write_errors
from dca.projects.project import ProjectError, create_project, find_projects, is_project
from dca.serve.errors import RequestError
from dca.serve.intake import Intake
from dca.serve.metrics import Gauge, ServerMetrics
from dca.serve.open_project import OpenProject
from dca.serve.options import ServeOptions
from dca.serve.service import Service, process_gauges, return_memory_periodically
from dca.training.session import Session

# Projects that are open at a time; of more, the one that was used longest ago is closed.
MOST_OPEN = 3


class ProjectService(Service):
    """Everything behind the API of one open project. labels, project: the project."""

    def __init__(self, project: OpenProject, intake: Intake, options: ServeOptions, metrics: ServerMetrics) -> None:
        super().__init__(project, intake, options, metrics)
        self.project = project


class ProjectsService:
    """A workspace whose projects are opened when they are asked for.

    Args:
        workspace: The folder of the projects; it is made if it is missing.
        session: Loads the backbone.
        backbone: Its name.
        options: How they are served.
        precision: "auto", "fp32" or "bf16".

    Attributes:
        options, metrics: As given, and what is counted.
        failure: Why it could not start; None if it did.
    """

    def __init__(
        self, workspace: Path, session: Session, backbone: str, options: ServeOptions, precision: str = "auto"
    ) -> None:
        self.workspace, self.options, self.metrics = workspace, options, ServerMetrics()
        self.failure: UserError | None = None
        self._session, self._backbone, self._precision = session, backbone, precision
        self.intake = Intake(session.load_backbone(backbone, precision), options, on_batch=self.metrics.batches.observe)
        self._open: dict[str, ProjectService] = {}
        self._lock = asyncio.Lock()
        self._background: list[asyncio.Task[None]] = []
        with explain_write_errors(workspace):
            workspace.mkdir(parents=True, exist_ok=True)

    async def start(self) -> None:
        """Start the decoding processes."""
        await self.intake.start()
        self._background.append(asyncio.create_task(return_memory_periodically()))

    async def stop(self) -> None:
        """Close all projects, and end all processes and threads."""
        for task in self._background:
            task.cancel()
        async with self._lock:
            await asyncio.gather(*(service.project.close() for service in self._open.values()))
            self._open.clear()
        await self.intake.stop()

    def list_names(self) -> list[str]:
        """The names of the projects, those that were used last first."""
        return [folder.name for folder in find_projects(self.workspace)]

    async def create(self, name: str) -> str:
        """Create an empty project; returns its name.

        Raises:
            RequestError: If it cannot have this name.
        """
        try:
            return (await asyncio.to_thread(create_project, self.workspace, name)).name
        except ProjectError as error:
            raise RequestError.from_user_error(error, error.code) from None

    async def open(self, name: str) -> ProjectService:
        """The open project of this name.

        Raises:
            RequestError: If there is none, or another process has it open.
            UserError: If it cannot be read.
        """
        async with self._lock:
            service = self._open.get(name)
            if service is None:
                service = self._open[name] = await self._open_project(name)
                await self._close_unused()
            service.project.used = time.monotonic()
            return service

    async def _open_project(self, name: str) -> ProjectService:
        found = await asyncio.to_thread(find_projects, self.workspace)
        root = next((folder for folder in found if folder.name == name), None)
        if root is None or not is_project(root):
            raise RequestError("no-project", "there is no such project", "look at the list of projects")
        project = OpenProject(root, self.intake, self._session, (self._backbone, self._precision), self.options)
        await project.open()
        return ProjectService(project, self.intake, self.options, self.metrics)

    async def _close_unused(self) -> None:
        while len(self._open) > MOST_OPEN:
            name = min(self._open, key=lambda own: self._open[own].project.used or 0)
            await self._open.pop(name).project.close()

    def gauges(self) -> list[Gauge]:
        """Numbers of the process for the metrics."""
        return [Gauge("dca_open_projects", "Projects that are open.", len(self._open)), *process_gauges(self.intake)]
