"""The page in a real browser: every panel, keyboard, light and dark, a phone, and what is refused."""

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.run_folder.callbacks import make_watchers
from ptymesh.run_folder.control import read_request
from ptymesh.run_folder.preview import NAME as PREVIEW
from ptymesh.run_folder.pyramid import write_pyramid
from ptymesh.simulate import checked
from ptymesh.watch import resuming

pytest.importorskip("starlette")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Serve = Callable[..., str]
WIDE = "return document.getElementById('picture').naturalWidth"


class Page:
    """The page in the browser, by the ids of its elements.

    Args:
        browser: that shows it.
    """

    def __init__(self, browser: Any) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        self.browser, self._wait = browser, WebDriverWait(browser, 40)

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements("css selector", selector)
        return found

    def text(self, selector: str) -> str:
        return str(self.one(selector).text)

    def script(self, text: str) -> Any:
        return self.browser.execute_script(text)

    def until(self, true: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException

        def is_true(_: object) -> Any:
            try:
                return true()
            except StaleElementReferenceException:
                return False

        return self._wait.until(is_true)

    def choose(self, name: str) -> None:
        """Click a run in the list, and wait until it is shown."""
        found = f"[...document.querySelectorAll('#runs button')].find((one) => one.firstChild.textContent === '{name}')"
        self.until(lambda: self.script(f"return Boolean({found})"))
        self.script(f"{found}.click()")
        self.until(lambda: self.text("#name") == name)

    def click_picture(self, *places: tuple[int, int]) -> None:
        """Click the picture at places from its middle, (x, y) in pixels of the screen."""
        from selenium.webdriver.common.action_chains import ActionChains

        for x, y in places:
            ActionChains(self.browser).move_to_element_with_offset(self.one("#stage"), x, y).click().perform()

    def are_images_there(self, selector: str, count: int) -> bool:
        return bool(
            self.script(
                f"const all = [...document.querySelectorAll('{selector} img')].filter((one) => one.naturalWidth > 0);"
                f"return all.length === {count};"
            )
        )

    def check_errors(self) -> None:
        """Fail if the browser has complained."""
        said = self.browser.get_log("browser")
        assert not [line for line in said if line["level"] == "SEVERE"], json.dumps(said)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that are done, one of which refined positions."""
    root = tmp_path_factory.mktemp("runs")
    write(checked(views=36, window=32, seed=3), root / "scan.cxi")
    for name, more in (("one", ""), ("two", ", positions: {start: 1}")):
        recipe = Recipe.from_yaml(
            f"data: {{path: {root / 'scan.cxi'}}}\nstages: [{{engine: rpie, epochs: 4, batch: 8{more}}}]\n"
            f"output: {{dir: {root / name}, figures: false}}\n"
        )
        watching = make_watchers()
        run_recipe(recipe, device="cpu", callbacks=watching)
        for one in watching:
            one.close()
    return root


@pytest.fixture
def page(browser: Any) -> Page:
    return Page(browser)


def test_the_picture_by_keyboard(runs: Path, page: Page, serve: Serve) -> None:
    serve(runs)
    page.choose("two")
    whole = page.until(lambda: page.script(WIDE))
    page.one("#positions").click()
    page.until(lambda: len(page.all("#marks circle")) == 36 and page.all("#marks line"))
    stage = page.one("#stage")
    stage.send_keys("++")
    page.until(lambda: 0 < page.script(WIDE) < whole)
    before = page.one("#picture").get_attribute("src")
    from selenium.webdriver.common.keys import Keys

    stage.send_keys(Keys.ARROW_LEFT)
    page.until(lambda: page.one("#picture").get_attribute("src") != before)
    stage.send_keys("0")
    page.until(lambda: page.script(WIDE) == whole)
    assert page.one("#bar").is_displayed() and page.text("#bar").endswith("m")
    page.one("[data-what=probe]").click()
    page.until(lambda: page.script(WIDE) == 32)
    assert not page.one("#bar").is_displayed() and not page.all("#marks circle")
    page.until(lambda: len(page.all("#curves polyline")) >= 3)
    page.check_errors()


def test_a_distance_is_measured(runs: Path, page: Page, serve: Serve) -> None:
    serve(runs)
    page.choose("one")
    page.until(lambda: page.script(WIDE))
    page.one("#measure").click()
    page.click_picture((-100, 0), (100, 0))
    page.until(lambda: len(page.all("#profile polyline")) == 2)
    with h5py.File(runs / "one" / "result.h5") as file:
        pixel, side = file["object"].attrs["pixel_size_m"][1], max(file["object"].shape[1:])
    length_px = 200 * side / page.one("#stage").size["height"]
    said, unit = page.text("#profile p").removeprefix("Distance ").split(" ")[:2]
    assert float(said) * {"nm": 1e-9, "µm": 1e-6}[unit] == pytest.approx(length_px * pixel, rel=0.02)
    assert len(page.all("#marks circle.measured")) == 2 and len(page.all("#marks line.measured")) == 1
    _, across, name = marks_of(page, "#profile figure")
    assert name == f"distance, {unit}" and float(across[0]) == 0
    assert 0.6 * float(said) < float(across[-1]) <= float(said)
    page.check_errors()


def test_a_pattern_beside_its_model(runs: Path, page: Page, serve: Serve) -> None:
    serve(runs, data=True)
    page.choose("one")
    page.until(lambda: page.script(WIDE))
    page.one("#pattern").click()
    page.click_picture((0, 0))
    page.until(lambda: page.are_images_there("#patterns", 3))
    assert "of 36 · residual" in page.text("#patterns")
    number = page.one("#patterns input")
    page.browser.execute_script("arguments[0].value = 5; arguments[0].dispatchEvent(new Event('change'))", number)
    page.until(
        lambda: (
            page.all("#patterns input")
            and page.one("#patterns input") != number
            and page.one("#patterns input").get_attribute("value") == "5"
            and page.are_images_there("#patterns", 3)
        )
    )
    page.check_errors()


def test_patterns_need_the_option(runs: Path, page: Page, serve: Serve) -> None:
    serve(runs)
    page.choose("one")
    page.until(lambda: page.script(WIDE))
    page.one("#pattern").click()
    page.click_picture((0, 0))
    page.until(lambda: "ptymesh watch --data" in page.text("#patterns"))


def test_two_runs_are_compared(runs: Path, page: Page, serve: Serve) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    serve(runs)
    page.choose("two")
    page.until(lambda: len(page.all("#other option")) == 2)
    Select(page.one("#other")).select_by_visible_text("one")
    page.until(lambda: page.text("#numbers").startswith("Against one: NRMSE"))
    page.until(lambda: page.are_images_there("#canvas", 2))
    assert page.text("#left-name") == "two" and page.text("#right-name") == "one"
    assert len(page.all("#agreement polyline")) == 3
    up, across, name = marks_of(page, "#agreement figure")
    assert up[-1] == "1" and len(across) >= 3 and name.startswith("spatial frequency, 1/")
    clip = "return document.getElementById('right').style.clipPath"
    assert "50%" in page.script(clip)
    page.one("#slider").send_keys(Keys.HOME)
    assert "50%" not in page.script(clip) and page.script("return document.getElementById('line').style.left") == "0%"
    page.one("[data-compare=difference]").click()
    page.until(lambda: "side=difference" in page.one("#left").get_attribute("src"))
    assert not page.one("#right").is_displayed() and not page.one("#slider").is_displayed()
    page.choose("one")
    assert not page.one("#comparison").is_displayed(), "it was of the other run"
    page.check_errors()


def test_caustic_and_ranks(runs: Path, page: Page, serve: Serve) -> None:
    serve(runs)
    page.choose("one")
    page.one("#caustic-panel summary").click()
    page.until(lambda: page.are_images_there("#caustic", 2) and len(page.all("#caustic polyline")) == 2)
    assert "waist of y" in page.text("#caustic")
    up, across, name = marks_of(page, "#caustic figure:last-of-type")
    assert len(up) >= 3 and "0" in across and name.startswith("along the axis, ")
    page.one("#ranks-panel summary").click()
    page.until(lambda: len(page.all("#ranks tr")) == 2)
    page.check_errors()


def test_a_study(tmp_path: Path, page: Page, serve: Serve) -> None:
    same = {"state": "done", "seconds": 2}
    rows = [{"number": n, "value": 0.1 / (n + 1), "settings": {"seed": n}, **same} for n in range(3)]
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    serve(tmp_path)
    page.until(lambda: len(page.all("#trials tr")) == 4 and page.all("#trials polyline"))
    assert "study of 3 trials" in page.text("#runs") and not page.one("#views").is_displayed()
    page.check_errors()


def test_a_run_that_goes_on_is_steered(
    tmp_path: Path, runs: Path, page: Page, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status line, preview, checkpoint, stop asked twice, and resume once it has stopped."""
    run, words = tmp_path / "run", []

    def remember(*given: str, **_: object) -> None:
        words.append(given)
        raise OSError(1, "not in this test")

    monkeypatch.setattr(resuming, "start_python", remember)
    run.mkdir()
    status = {
        "phase": "stage",
        "outcome": None,
        "stage": 1,
        "stages": 2,
        "engine": "rpie",
        "epoch": 3,
        "epochs": 9,
        "batch": 2,
        "batches": 4,
        "done_epochs": 2,
        "total_epochs": 18,
        "seconds_left": 30,
        "pid": 1,
        "host": "there",
    }
    (run / "status.json").write_text(json.dumps(status))
    with h5py.File(runs / "one" / "result.h5") as file, h5py.File(run / PREVIEW, "w") as made:
        for name in ("object", "probe", "positions_px"):
            made[name] = file[name][()]
        views = len(file["positions_px"])
    serve(tmp_path, control=True)
    page.choose("run")
    page.until(lambda: "preview while it goes on" in page.text("#scale"))
    page.one("#positions").click()
    page.until(lambda: len(page.all("#marks circle")) == views > 0)
    assert "stage 1 of 2, rpie, epoch 3 of 9 · batch 2 of 4 · 30 s left" in page.text("#where")
    assert page.script("return document.querySelector('progress').value") == 2.5
    assert not page.one("#resume").is_displayed() and not page.one("#longer").is_displayed()
    page.one("#save").click()
    page.until(lambda: read_request(run) == "save" and "writes a checkpoint" in page.text("#asked"))
    page.one("#stop").click()
    assert page.text("#stop") == "stop: sure?" and read_request(run) == "save"
    page.one("#stop").click()
    page.until(lambda: read_request(run) == "stop")
    (run / "control").unlink()
    shutil.copytree(runs / "one" / "checkpoint", run / "checkpoint")
    (run / "status.json").write_text(json.dumps(status | {"outcome": "interrupted"}))
    page.until(lambda: page.one("#resume").is_displayed())
    assert not page.one("#stop").is_displayed()
    page.one("#resume").click()
    page.until(lambda: len(words) == 1)
    page.one("#epochs").send_keys("12")
    page.one("#longer button").click()
    page.until(lambda: len(words) == 2)
    assert words == [("-m", "ptymesh", "resume", str(run)), (*words[0], "--set", "stages.0.epochs=12")]


def test_a_run_whose_frames_arrive(tmp_path: Path, runs: Path, page: Page, serve: Serve) -> None:
    """Frames so far, and how late they are used and shown."""
    run = tmp_path / "stream"
    run.mkdir()
    row = {"frames": 500, "unseen": 20, "residual": 0.1, "latency_s": 0.25}
    (run / "live.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"latency_s": None}) + "\n")
    shutil.copy(runs / "one" / "result.h5", run / "live.h5")
    serve(tmp_path)
    page.choose("stream")
    page.until(lambda: "s after its last frames arrived" in page.text("#scale"))
    assert float(page.text("#scale").split("on the screen ")[1].split()[0]) > 0.25
    assert "500 frames, 20 of them not used yet, used 0.2500 s after they arrive, residual" in page.text("#verdict")
    assert "500 frames · residual 0.1" in page.text("#runs")
    assert "residual, logarithmic" in page.text("#curves") and "held-out" not in page.text("#curves")
    page.check_errors()


def test_a_live_run_is_steered(tmp_path: Path, runs: Path, page: Page, serve: Serve) -> None:
    """While frames arrive it is asked for its picture, and to take no more frames."""
    run = tmp_path / "stream"
    run.mkdir()
    status = {"phase": "receiving", "outcome": None, "frames": 500, "expected_frames": 2000, "pid": 1, "host": "there"}
    (run / "status.json").write_text(json.dumps(status))
    (run / "live.jsonl").write_text(json.dumps({"frames": 480, "unseen": 20, "residual": 0.1}) + "\n")
    shutil.copy(runs / "one" / "result.h5", run / "live.h5")
    serve(tmp_path, control=True)
    page.choose("stream")
    page.until(lambda: "receiving, 500 of 2000 frames" in page.text("#where"))
    bar = "const bar = document.querySelector('progress'); return bar.value / bar.max"
    assert page.script(bar) == 0.25 and "receiving, 500 of 2000 frames" in page.text("#runs")
    page.one("#save").click()
    page.until(lambda: read_request(run) == "save" and page.text("#asked") == "It writes live.h5.")
    page.one("#stop").click()
    page.one("#stop").click()
    page.until(lambda: read_request(run) == "stop" and "takes no more frames" in page.text("#asked"))
    (run / "control").unlink()
    (run / "status.json").write_text(json.dumps(status | {"phase": "finishing", "expected_frames": None}))
    page.until(lambda: "finishing, 500 frames" in page.text("#where"))
    assert page.script(bar) == 0 and page.one("#stop").is_displayed()
    (run / "status.json").write_text(json.dumps(status | {"phase": "saving"}))
    page.until(lambda: not page.one("#control").is_displayed())
    # a checkpoint is of an earlier run in the folder, and `ptymesh resume` would go on with that
    shutil.copytree(runs / "one" / "checkpoint", run / "checkpoint")
    command = "cd /there && ptymesh live live.yaml --from tcp://127.0.0.1:5599 --out stream"
    (run / "status.json").write_text(json.dumps(status | {"outcome": "interrupted", "command": command}))
    page.until(lambda: page.text("#again") == f"It goes on with {command}")
    assert not page.one("#resume").is_displayed() and not page.one("#longer").is_displayed()
    page.check_errors()


def test_no_buttons_without_control(runs: Path, page: Page, serve: Serve) -> None:
    serve(runs)
    page.choose("one")
    assert not page.one("#control").is_displayed()


def test_a_large_object_down_to_its_pixels(tmp_path: Path, page: Page, serve: Serve) -> None:
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "result.h5", "w") as file:
        small = np.exp(1j * rng.normal(size=(160, 160)))
        file["object"] = np.kron(small, np.ones((32, 32))).astype(np.complex64)[None]
        file["probe"], file["positions_px"] = np.ones((1, 8, 8), np.complex64), np.zeros((1, 2))
    assert write_pyramid(tmp_path / "result.h5") is not None
    serve(tmp_path)
    page.until(lambda: page.script(WIDE) == 640)
    stage = page.one("#stage")
    for _ in range(12):
        stage.send_keys("+")
    page.until(lambda: page.text("#scale").split(" ")[0] == str(page.script(WIDE)) and page.script(WIDE) < 100)
    page.check_errors()


def test_an_object_of_20000_pixels_from_a_cold_cache(tmp_path: Path, page: Page, serve: Serve) -> None:
    """Its first screen is there within 2 s of the page's opening."""
    side, piece = 20_000, 1000
    result = tmp_path / "result.h5"
    y, x = np.mgrid[:piece, :piece] * (2 * np.pi / piece)
    waves = np.exp(1j * (np.sin(5 * x) + np.cos(3 * y))).astype(np.complex64)
    packed = zlib.compress(waves.tobytes(), 1)
    with h5py.File(result, "w") as file:
        chunks = (1, piece, piece)
        made = file.create_dataset("object", (1, side, side), np.complex64, chunks=chunks, compression="gzip")
        for row in range(0, side, piece):
            for column in range(0, side, piece):
                made.id.write_direct_chunk((0, row, column), packed)
        file["probe"], file["positions_px"] = np.ones((1, 8, 8), np.complex64), np.zeros((1, 2))
    pyramid = write_pyramid(result)
    assert pyramid is not None
    for path in (result, pyramid):
        with open(path, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    serve(tmp_path)
    page.until(lambda: page.script(WIDE) == 625)
    assert time.monotonic() - started < 2
    page.check_errors()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(runs: Path, browser: Any, page: Page, serve: Serve, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    serve(runs)
    page.choose("one")
    of = "return getComputedStyle(document.{}).{}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    ground, words = page.script(of.format("body", "backgroundColor")), page.script(of.format("body", "color"))
    assert (ground > 700 and words < 100) if scheme == "light" else (ground < 100 and words > 600)


def test_on_a_phone(runs: Path, browser: Any, page: Page, serve: Serve) -> None:
    from selenium.webdriver.support.ui import Select

    size = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    serve(runs)
    page.choose("two")
    page.until(lambda: page.script(WIDE) and len(page.all("#other option")) == 2)
    Select(page.one("#other")).select_by_visible_text("one")
    page.until(lambda: page.are_images_there("#canvas", 2))
    page.script("for (const one of document.querySelectorAll('details')) one.open = true")
    page.until(lambda: page.all("#ranks tr") and page.are_images_there("#caustic", 2))
    assert page.script("return document.documentElement.scrollWidth") <= 380
    assert page.one("#stage").size["width"] > 300 and page.one("#canvas").size["width"] > 300


def test_every_control_has_a_name_and_can_be_reached(runs: Path, page: Page, serve: Serve) -> None:
    from selenium.webdriver.common.keys import Keys

    serve(runs)
    page.choose("one")
    for one in page.all("button, input, select, #stage"):
        if one.is_displayed():
            assert one.accessible_name, one.get_attribute("outerHTML")
    reached = set()
    page.script("document.body.focus()")
    for _ in range(30):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.script("return document.activeElement.id"))
    assert {"stage", "positions", "measure", "pattern", "other", "index"} <= reached


def test_a_wrong_token_and_another_host(runs: Path, browser: Any, page: Page, serve: Serve) -> None:
    host = serve(runs)
    browser.get(f"http://{host}/?token=another-word-than-it")
    assert "with its token" in page.text("body") and not page.all("#runs")
    browser.get(f"http://localhost:{host.split(':')[1]}/?token=a-word-of-its-own")
    assert "This address is not served" in page.text("body") and not page.all("#runs")


@pytest.fixture
def layered(tmp_path: Path, runs: Path) -> Path:
    """Folder with a run of two slices on two ranks, which held out views."""
    run = tmp_path / "layered"
    run.mkdir()
    shutil.copy(runs / "two" / "result.h5", run / "result.h5")
    with h5py.File(run / "result.h5", "a") as file:
        whole, about = file["object"][()], dict(file["object"].attrs)
        del file["object"]
        file["object"] = np.concatenate((whole, whole[:, ::-1].conj()))
        file["object"].attrs.update(about)
        file.attrs["rank_peak_bytes"], file.attrs["rank_waited_s"] = [3 << 20, 5 << 30], [0.25, 1.5]
        file.attrs["rank_computed_s"] = [20.0, 18.75]
        file.attrs["rank_sent_bytes_per_epoch"], file.attrs["rank_received_bytes_per_epoch"] = (
            [4096.0, 512],
            [512.0, 4096],
        )
        file.attrs["bytes_per_batch"], file.attrs["messages_per_batch"] = 2048.0, 7.0
    rows = [{"epoch": n, "residual": 0.5 / n, "held_out": 0.75 / n, "loss": 90.0 / n} for n in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "log.txt").write_text("epoch 3 of 3 was the last\n")
    return run


def test_slices_and_kinds_of_pictures(layered: Path, page: Page, serve: Serve) -> None:
    """Phase, amplitude, both and probe; the second slice; and nothing is fetched from elsewhere."""
    host = serve(layered.parent)
    page.choose("layered")
    page.until(lambda: page.script(WIDE))
    seen = set()
    for kind in ("phase", "amplitude", "colour", "probe", "phase"):
        page.one(f"[data-what={kind}]").click()
        page.until(
            lambda kind=kind: (
                f"what={kind}" in page.one("#picture").get_attribute("src")
                and page.one("#picture").get_attribute("alt") == f"{kind} of layered"
                and page.one(f"[data-what={kind}]").get_attribute("aria-pressed") == "true"
            )
        )
        seen.add(pixels_of(page))
    assert len(seen) == 4, "each kind is a picture of its own"
    page.script("const one = document.getElementById('index'); one.value = 1; one.dispatchEvent(new Event('change'))")
    page.until(lambda: "index=1" in page.one("#picture").get_attribute("src"))
    assert pixels_of(page) not in seen and page.one("#index").get_attribute("max") == "1"
    fetched = page.script("return performance.getEntriesByType('resource').map((one) => new URL(one.name).host)")
    assert len(fetched) > 8 and set(fetched) <= {host, ""}
    page.check_errors()


def pixels_of(page: Page) -> str:
    """Return the picture as the browser has drawn it."""
    return str(
        page.script(
            "const one = document.getElementById('picture'), made = document.createElement('canvas');"
            "made.width = one.naturalWidth; made.height = one.naturalHeight;"
            "made.getContext('2d').drawImage(one, 0, 0); return made.toDataURL();"
        )
    )


def marks_of(page: Page, figure: str) -> tuple[list[str], list[str], str]:
    """Return the numbers at the marks of a figure's axes, upright and across, and the name of the latter."""
    up, across = ([one.text for one in page.all(f"{figure} .{axis}")] for axis in ("up", "across"))
    return up, across, page.text(f"{figure} .axis")


def test_marks_are_round_and_in_their_places(runs: Path, page: Page, serve: Serve) -> None:
    """Of linear and of logarithmic axes, from one value to many powers of ten."""
    serve(runs)
    for low, high, logarithmic, wanted in (
        (0, 1, "false", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3.2, 7.1, "false", [-2, 0, 2, 4, 6]),
        (0.031, 0.052, "true", [0.035, 0.04, 0.045, 0.05]),
        (0.04, 0.3, "true", [0.05, 0.1, 0.2]),
        (2e-7, 3e2, "true", [1e-5, 1e-3, 0.1, 10]),
    ):
        assert page.script(f"return ticks({low}, {high}, {logarithmic})") == pytest.approx(wanted), (low, high)
    assert page.script("return [0.2 + 0.1, 1e-7, -25, 300000, 0].map(tickName)") == ["0.3", "1e-7", "-25", "3e5", "0"]
    made = "const made = chart('of x', {a: [1, 3, 2]}, {x: [0, 5, 10], across: 'x, nm'}); document.body.append(made)"
    page.script(made)
    place = "const one = [...made.querySelectorAll('%s')].map((one) => one.style.%s); return one"
    page.script("window.made = document.body.lastElementChild")
    assert marks_of(page, "body > figure") == (["1", "1.5", "2", "2.5", "3"], ["0", "2", "4", "6", "8", "10"], "x, nm")
    tops, lefts = (page.script(place % names) for names in ((".up", "top"), (".across", "left")))
    assert [float(top[:-1]) for top in tops] == pytest.approx(np.linspace(160, 10, 5) / 1.7, abs=1e-3)
    assert [float(left[:-1]) for left in lefts] == pytest.approx(np.linspace(5, 295, 6) / 3, abs=1e-3)
    page.check_errors()


def test_wheel_and_dragging(runs: Path, page: Page, serve: Serve) -> None:
    """The wheel zooms about the pointer, and what is dragged follows it."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    serve(runs)
    page.choose("one")
    whole = page.until(lambda: page.script(WIDE))
    stage, region = page.one("#stage"), "return view()"
    for _ in range(3):
        ActionChains(page.browser).scroll_from_origin(ScrollOrigin.from_element(stage), 0, -100).perform()
    page.until(lambda: 0 < page.script(WIDE) < whole)
    top, left, bottom, right = page.script(region)
    assert bottom - top == pytest.approx(0.8**3 * whole, abs=4)
    assert (top + bottom) / 2 == pytest.approx(whole / 2, abs=4), "the pointer was in the middle"
    scale = page.script("return frame().scale")
    ActionChains(page.browser).move_to_element(stage).click_and_hold().move_by_offset(-30, -20).release().perform()
    moved = page.script(region)
    assert moved[0] - top == pytest.approx(20 / scale, abs=1.5) and moved[1] - left == pytest.approx(
        30 / scale, abs=1.5
    )
    assert (moved[2] - moved[0], moved[3] - moved[1]) == (bottom - top, right - left)
    page.until(lambda: f"region={'%2C'.join(map(str, moved))}" in page.one("#picture").get_attribute("src"))
    page.check_errors()


def test_curves_ranks_log_and_recipe(layered: Path, page: Page, serve: Serve) -> None:
    serve(layered.parent)
    page.choose("layered")
    page.until(lambda: "held out 0.2500" in page.text("#curves"))
    assert "residual 0.1667" in page.text("#curves") and "loss 30.00" in page.text("#curves")
    residual, loss = (marks_of(page, f"#curves figure:nth-of-type({number})") for number in (1, 2))
    assert residual == (["0.2", "0.5"], ["1", "2", "3"], "epoch") and loss[0] == [f"{n}0" for n in range(3, 10)]
    page.one("#ranks-panel summary").click()
    page.until(lambda: len(page.all("#ranks tr")) == 3)
    assert [row.text for row in page.all("#ranks tr")[1:]] == [
        "0 3.00 MiB 20.00 s 0.2500 s 4.00 KiB 512 B",
        "1 5.00 GiB 18.75 s 1.500 s 512 B 4.00 KiB",
    ]
    assert "2.00 KiB in 7.000 messages per batch" in page.text("#ranks")
    assert page.text("#log") == "epoch 3 of 3 was the last"
    page.one("#recipe").find_element("xpath", "..").find_element("css selector", "summary").click()
    page.until(lambda: "engine: rpie" in page.text("#recipe"))
    page.check_errors()
