"""The server of the page: it reads the folders that it was given, and answers who has its token.

Nothing is run, and nothing is written but, with `control`, a word into the folder of a run that goes on, and `ptymesh
resume` of a run that was stopped. Data outside of the folders are read with `data` alone. Requests name
runs by ids, which are looked up among those found below the given folders, so that no other file can be asked for.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ptymesh.errors import PtymeshError
from ptymesh.watch.growing import GrowingFiles, Row
from ptymesh.watch.panels import (
    PanelRequest,
    answer_caustic,
    answer_caustic_picture,
    answer_comparison,
    answer_comparison_picture,
    answer_pattern,
    answer_pattern_picture,
    answer_profile,
    answer_ranks,
)
from ptymesh.watch.pictures import KINDS, What, picture
from ptymesh.watch.resuming import ResumedRuns
from ptymesh.watch.runs import ObjectFile, OpenedArrays, RunFolder, find_runs

#: Headers of all answers: nothing is fetched from elsewhere, framed, guessed or kept.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: Pictures that are kept.
KEPT = 64
#: Scripts of the page, in the order in which they are loaded.
SCRIPTS = ("page.js", "picture.js", "panels.js", "compare.js")
PAGE = Path(__file__).with_name("page.html")


def make_app(
    roots: Sequence[Path], token: str, hosts: Sequence[str], *, control: bool = False, data: bool = False
) -> Starlette:
    """Return the application.

    Args:
        roots: folders that are runs or hold some.
        token: without which nothing is answered.
        hosts: values of the header Host that are served, with port.
        control: True if runs may be asked to stop, and for checkpoints.
        data: True if the data that recipes name may be read, wherever they lie.
    """
    lines, resumed = GrowingFiles(), ResumedRuns()

    def runs() -> dict[str, RunFolder]:
        return find_runs(roots, lines)

    async def page(request: Request) -> Response:
        text = PAGE.read_text(encoding="utf-8").replace("TOKEN", token).replace("CONTROL", str(control).lower())
        return HTMLResponse(text)

    def script(name: str) -> Route:
        async def answer(request: Request) -> Response:
            return Response(PAGE.with_name(name).read_bytes(), media_type="text/javascript")

        return Route(f"/{name}", answer)

    def panel(path: str, make: Callable[[PanelRequest], Row | bytes]) -> Route:
        async def answer(request: Request) -> Response:
            by_id = await run_in_threadpool(runs)
            run = by_id.get(request.query_params.get("id", ""))
            if run is None:
                return _unknown()
            try:
                body = await run_in_threadpool(make, PanelRequest(run, by_id, request.query_params, data))
            except (PtymeshError, ValueError, IndexError, KeyError, OSError) as error:
                return PlainTextResponse(str(error), 400)
            return Response(body, media_type="image/png") if isinstance(body, bytes) else JSONResponse(body)

        return Route(path, answer)

    async def style(request: Request) -> Response:
        return Response(PAGE.with_name("page.css").read_bytes(), media_type="text/css")

    async def all_runs(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lambda: [run.summary() for run in runs().values()]))

    async def one_run(request: Request) -> Response:
        run = await _run(request)
        if run is None:
            return _unknown()
        state = {"could_not_resume": resumed.last_words(run.id), "starting": resumed.is_alive(run.id)}
        return JSONResponse(await run_in_threadpool(run.details) | state)

    async def positions(request: Request) -> Response:
        run = await _run(request)
        try:
            return _unknown() if run is None else JSONResponse(await run_in_threadpool(run.positions))
        except (OSError, KeyError, ValueError):  # a result that is damaged, or just being replaced
            return _unknown()

    async def image(request: Request) -> Response:
        run = await _run(request)
        file = None if run is None else await run_in_threadpool(run.object_file)
        if file is None:
            return _unknown()
        query = request.query_params
        try:
            kind, index, region = _parse_picture(
                query.get("what", "phase"), query.get("index", "0"), query.get("region")
            )
            png = await run_in_threadpool(_picture, file, kind, index, region)
        except (ValueError, IndexError, KeyError, OSError) as error:
            return PlainTextResponse(f"There is no such picture ({error}).", 400)
        return Response(png, media_type="image/png")

    async def ask(request: Request) -> Response:
        if not control:
            return PlainTextResponse("This page only shows runs; start it with `ptymesh watch --control`.", 403)
        if "x-token" not in request.headers:  # which no form and no link of another page can send
            return PlainTextResponse("A request that changes a run must carry the token in the header X-Token.", 401)
        run = await _run(request)
        if run is None:
            return _unknown()
        word, epochs = request.query_params.get("word", ""), request.query_params.get("epochs")
        try:
            if word == "resume":
                await run_in_threadpool(resumed.start, run, None if epochs is None else int(epochs))
            else:
                await run_in_threadpool(run.ask, word)
        except (ValueError, PtymeshError) as error:
            return PlainTextResponse(f"The run cannot do that: {str(error).rstrip('.')}.", 409)
        except OSError as error:
            return PlainTextResponse(f"The folder of the run cannot be written to ({error.strerror}).", 409)
        return JSONResponse({"asked": word})

    async def _run(request: Request) -> RunFolder | None:
        return (await run_in_threadpool(runs)).get(request.query_params.get("id", ""))

    routes = [
        Route("/", page),
        *(script(name) for name in SCRIPTS),
        Route("/page.css", style),
        Route("/api/runs", all_runs),
        Route("/api/run", one_run),
        Route("/api/positions", positions),
        Route("/api/picture", image),
        Route("/api/ask", ask, methods=["POST"]),
        panel("/api/compare", answer_comparison),
        panel("/api/compare/picture", answer_comparison_picture),
        panel("/api/profile", answer_profile),
        panel("/api/pattern", answer_pattern),
        panel("/api/pattern/picture", answer_pattern_picture),
        panel("/api/caustic", answer_caustic),
        panel("/api/caustic/picture", answer_caustic_picture),
        panel("/api/ranks", answer_ranks),
    ]

    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = _refusal(request, token, hosts) or await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])


def _refusal(request: Request, token: str, hosts: Sequence[str]) -> Response | None:
    """Return the answer to a request that is not served, None for one that is.

    Args:
        request: to look at.
        token: that it has to know.
        hosts: that it may have been sent to: another name in front of this address is an attack from a page.
    """
    if request.headers.get("host", "") not in hosts:
        return PlainTextResponse("This address is not served; open the one that `ptymesh watch` has printed.", 400)
    origin = request.headers.get("origin")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return PlainTextResponse("Requests from other pages are not answered.", 403)
    token_given = request.headers.get("x-token") or request.query_params.get("token") or ""
    if not hmac.compare_digest(token_given.encode(), token.encode()):
        return PlainTextResponse("Open the address that `ptymesh watch` has printed, with its token.", 401)
    return None


def _unknown() -> Response:
    return PlainTextResponse("There is no such run, or nothing of it to show yet.", 404)


def _parse_picture(
    kind_name: str, index: str, region: str | None
) -> tuple[What, int, tuple[int, int, int, int] | None]:
    """Return kind, index and region of the picture that was asked for.

    Raises:
        ValueError: it is none.
    """
    kind = next((known for known in KINDS if known == kind_name), None)
    if kind is None:
        raise ValueError(f"what is {kind_name[:20]}")
    if region is None:
        return kind, int(index), None
    top, left, bottom, right = (int(part) for part in region.split(","))
    return kind, int(index), (top, left, bottom, right)


@lru_cache(KEPT)
def _picture(file: ObjectFile, kind: What, index: int, region: tuple[int, int, int, int] | None) -> bytes:
    """Return a picture of a file as it is at its time of modification.

    Raises:
        ValueError: the region is empty or beyond the object.
    """
    with OpenedArrays(file) as arrays:
        slices, height, width = arrays.object_shape
        count = arrays.probe_shape[0] if kind == "probe" else slices
        if not 0 <= index < count:
            raise ValueError(f"there are {count}, and {index} was asked for")
        if region is not None:
            top, left, bottom, right = region
            if not (0 <= top < bottom <= height and 0 <= left < right <= width):
                raise ValueError(f"the object has {height} x {width} pixels")
        return picture(arrays, kind, index, region)
