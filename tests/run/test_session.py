"""Several runs in one session: each has the result, the log and the folder that it has alone."""

from __future__ import annotations

import random
import signal
from types import SimpleNamespace

import pytest
import torch

from manyfit import load_config
from manyfit.core.errors import Interrupted, RunFailed
from manyfit.core.position import Position
from manyfit.core.signals import Watch
from manyfit.learn.functions.functions import Functions
from manyfit.learn.kind import BUILT_IN, _load_built_in
from manyfit.learn.torch.kind import TorchKind
from manyfit.run.build.shared_data import SharedData
from manyfit.run.session import session
from manyfit.run.trial import Reached, Request, train_until
from manyfit.store.folder import RunFolder

MODELS = """
import logging, random
import numpy as np
import torch
from torch import nn
from models import MLP

log = logging.getLogger("manyfit")


class Drawing(MLP):
    '''Draws from every global generator while it trains.'''

    def forward(self, images):
        noise = random.random() + np.random.random()
        return super().forward(images) * (1 + 1e-3 * noise if self.training else 1)


class Stepping(Drawing):
    '''Performs the whole step itself.'''

    def train_step(self, batch, optimizer):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self(batch.inputs), batch.target)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "twice": 2 * loss}


class Modes(MLP):
    '''Changes the process while it is built, and needs that while it trains.'''

    def __init__(self, hidden: int = 4) -> None:
        super().__init__(hidden)
        torch.use_deterministic_algorithms(True)

    def forward(self, images):
        assert torch.are_deterministic_algorithms_enabled()
        return super().forward(images)


class Plain(MLP):
    def forward(self, images):
        assert not torch.are_deterministic_algorithms_enabled()
        return super().forward(images)


class Failing(MLP):
    '''Fails in training at some call.'''

    def __init__(self, hidden: int = 4, at: int = 5) -> None:
        super().__init__(hidden)
        self.calls, self.at = 0, at

    def forward(self, images):
        self.calls += self.training
        if self.calls == self.at:
            raise ValueError("no more of this")
        return super().forward(images)


class FailingToValidate(MLP):
    def forward(self, images):
        if not self.training:
            raise ValueError("not this one")
        return super().forward(images)


class Talking(MLP):
    def __init__(self, hidden: int = 4, word: str = "") -> None:
        super().__init__(hidden)
        self.word = word
        log.warning("building %s", word)

    def forward(self, images):
        if self.training:
            log.warning("training %s", self.word)
        return super().forward(images)
"""


@pytest.fixture
def lab(project):
    project.write("src/more.py", MODELS)

    def request(name, watch=None, **changes):
        tree = project.changed(**{"train__epochs": 3, **changes})
        folder = RunFolder(project.config(tree, run=name).parent)
        return Request(load_config(folder.path), folder, watch=watch or Watch())

    return request


def train(requests, until=None, watch=None, shared=None):
    """Train, and return what became of each, by the name of its folder."""
    position = None if until is None else Position(epoch=until)
    found = train_until(requests, position, watch or Watch(), study="x", shared=shared or SharedData())
    return {request.folder.path.name: result for request, result in found}


def same(left: RunFolder, right: RunFolder):
    """Whether two runs have the same log and the same state."""
    assert [(e.step, e.values) for e in left.events()] == [(e.step, e.values) for e in right.events()]
    states = [run.checkpoints()[-1].load().tensors for run in (left, right)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


VARIANTS = {
    "small": {"model__hidden": 4},
    "large": {"model__hidden": 16},
    "rate": {"train__optimizer__lr": 0.05},
    "seed": {"seed": 8},
    "drawing": {"model": {"class": "more.Drawing", "hidden": 8}},
    "drawing too": {"model": {"class": "more.Drawing", "hidden": 8}, "seed": 8},
    "batch": {"data__batch_size": 50},
    "longer": {"train__epochs": 4},
    "sparse": {"train__every": {"log": "7ba", "validate": "1ep"}},
}


def test_each_run_ends_as_it_does_alone(lab):
    """Replicates, other models, other plans and models that draw at random, in one session."""
    random.seed(1)
    together = train([lab(f"a-{name}", **changes) for name, changes in VARIANTS.items()])
    assert all(isinstance(result, Reached) for result in together.values()), together
    for name, changes in VARIANTS.items():
        random.seed(2)
        (alone,) = train([lab(f"b-{name}", **changes)]).values()
        assert isinstance(alone, Reached)
        here = together[f"a-{name}"]
        assert (alone.step, alone.over, alone.trained) == (here.step, here.over, here.trained)
        same(lab(f"a-{name}").folder, lab(f"b-{name}").folder)


def test_runs_that_are_behind_catch_up(lab):
    names = ["one", "two", "three"]
    for count, name in enumerate(names):
        train([lab(name, model={"class": "more.Drawing"})], until=count) if count else None
    found = train([lab(name, model={"class": "more.Drawing"}) for name in names])
    assert all(result.over for result in found.values()), found
    assert {name: result.trained for name, result in found.items()} == {
        name: found["one"].step * (3 - count) // 3 for count, name in enumerate(names)
    }
    train([lab("alone", model={"class": "more.Drawing"})])
    for name in names:
        same(lab(name).folder, lab("alone").folder)


def test_sessions_resume(lab):
    """Paused together, continued in another company."""
    names = ["one", "two", "three"]
    changes = {"model": {"class": "more.Drawing"}}
    first = train([lab(name, seed=7 + i, **changes) for i, name in enumerate(names)], until=1)
    assert not any(result.over for result in first.values())
    train([lab("two", seed=8, **changes), lab("one", seed=7, **changes)], until=2)
    last = train([lab(name, seed=7 + i, **changes) for i, name in enumerate(names)])
    assert all(result.over for result in last.values())
    for i, name in enumerate(names):
        train([lab(f"alone-{name}", seed=7 + i, **changes)])
        same(lab(name).folder, lab(f"alone-{name}").folder)


@pytest.mark.parametrize("model", ["more.Failing", "more.FailingToValidate"])
def test_one_fails_alone(lab, model):
    found = train([lab("good"), lab("bad", model={"class": model, "hidden": 4}), lab("fine", seed=8)])
    assert isinstance(found["bad"], RunFailed)
    assert "ValueError" in str(found["bad"])
    assert lab("bad").folder.failure()["message"] in str(found["bad"])
    train([lab("alone"), lab("alone fine", seed=8)])
    for name, other in (("good", "alone"), ("fine", "alone fine")):
        assert found[name].over
        assert not lab(name).folder.failure_file.exists()
        same(lab(name).folder, lab(other).folder)


def test_one_that_cannot_be_built_fails_alone(lab):
    found = train(
        [
            lab("bad", train__device="cuda:9"),
            lab("good"),
        ]
    )
    assert "cuda:9" in str(found["bad"])
    assert found["good"].over


def test_all_fail(lab):
    found = train(
        [lab("a", model={"class": "more.Failing"}), lab("b", model={"class": "more.Failing", "at": 2})]
    )
    assert all(isinstance(error, RunFailed) for error in found.values())


def test_one_that_diverges_and_one_that_stops_early(lab):
    found = train(
        [
            lab("good"),
            lab("diverges", train__optimizer__lr=1e30),
            lab("stops", train__stop={"metric": "val_loss", "reach": 100.0}),
        ]
    )
    assert isinstance(found["diverges"], RunFailed)
    assert found["diverges"].kind == "not a number"
    assert found["stops"].over
    assert "has reached" in found["stops"].reason
    assert found["stops"].step < found["good"].step
    train([lab("alone")])
    same(lab("good").folder, lab("alone").folder)


class After(Watch):
    """Asks to end after some checks."""

    def __init__(self, checks):
        self.left = checks

    @property
    def number(self):
        self.left -= 1
        return signal.SIGTERM if self.left < 0 else 0


def test_one_is_interrupted_alone_and_resumes(lab):
    found = train([lab("good"), lab("asked", After(2), seed=8)])
    assert isinstance(found["asked"], Interrupted)
    assert found["good"].over
    where = lab("asked").folder.checkpoints()[-1].step
    assert 0 < where < found["good"].step
    assert train([lab("asked", seed=8)])["asked"].over
    train([lab("alone", seed=8)])
    same(lab("asked").folder, lab("alone").folder)


def test_a_signal_ends_all_of_them_and_they_resume(lab):
    found = train([lab("a"), lab("b", seed=8)], watch=After(3))
    assert all(isinstance(error, Interrupted) for error in found.values()), found
    assert all(result.over for result in train([lab("a"), lab("b", seed=8)]).values())
    for name, seed in (("a", 3), ("b", 8)):
        train([lab(f"alone-{name}", seed=seed)])
        same(lab(name).folder, lab(f"alone-{name}").folder)


def test_each_log_has_its_own_lines_only(lab):
    words = ["alpha", "beta", "gamma"]
    train([lab(word, model={"class": "more.Talking", "word": word}) for word in words])
    for word in words:
        text = (lab(word).folder.path / "run.log").read_text()
        assert f"building {word}" in text
        assert text.count(f"training {word}") == text.count("training ") > 3
        assert not any(other in text for other in words if other != word)


def test_what_a_run_changes_in_the_process_stays_with_it(lab):
    found = train(
        [
            lab("modes", model={"class": "more.Modes"}),
            lab("plain", model={"class": "more.Plain"}),
            lab("last"),
        ]
    )
    assert all(isinstance(result, Reached) for result in found.values()), found
    assert not torch.are_deterministic_algorithms_enabled()


def test_data_is_read_once_for_all(lab, project):
    project.write(
        "src/once.py",
        """
        from pathlib import Path
        from points import Blobs

        FILE = Path(__file__).with_name("rows")


        class Once(Blobs):
            def source(self, split):
                FILE.write_text(FILE.read_text() + split + " ")
                return super().source(split)
        """,
    )
    (project.src / "rows").write_text("")
    train(
        [
            lab(name, data={"class": "once.Once", "batch_size": 16}, model__hidden=4 + i)
            for i, name in enumerate("abcd")
        ]
    )
    assert sorted((project.src / "rows").read_text().split()) == ["test", "train", "validation"]


HARMFUL = """
import logging, os, tempfile
import numpy as np
import torch
from models import MLP


class Harmful(MLP):
    '''Changes the process with every call.'''

    def forward(self, images):
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_autocast_enabled("cpu", True)
        torch.backends.mkldnn.enabled = False
        np.seterr(all="raise")
        logging.disable(logging.CRITICAL)
        torch.set_default_dtype(torch.float64)
        return super().forward(images)
"""


def test_others_do_not_notice_what_a_model_does_to_the_process(lab, project):
    project.write("src/harmful.py", HARMFUL)
    talking = {"model": {"class": "more.Talking", "word": "w"}}
    found = train([lab("bad", model={"class": "harmful.Harmful"}), lab("good", **talking)])
    assert isinstance(found["good"], Reached), found
    train([lab("alone", **talking)])
    same(lab("good").folder, lab("alone").folder)
    logs = [(lab(name).folder.path / "run.log").read_text().count("training w") for name in ("good", "alone")]
    assert logs[0] == logs[1] > 3


SPLIT = """
import random
import torch
from torchmetrics import Metric


class Drawn(Metric):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, output, target):
        self.total += output.sum()

    def compute(self):
        if self.fails:
            raise ValueError("metric oops")
        return self.total * random.random()
"""


def test_metrics_of_a_split_belong_to_their_run(lab, project):
    project.write("src/split.py", SPLIT)
    drawn = {"train__metrics": ["accuracy", {"class": "split.Drawn"}]}
    fails = {"train__metrics": ["accuracy", {"class": "split.Drawn", "fails": True}]}
    stops = {"train__stop": {"metric": "val_loss", "reach": 100.0}}
    found = train([lab("a", **drawn), lab("bad", **fails), lab("stops", **stops), lab("b", **drawn)])
    assert "metric oops" in str(found["bad"])
    assert found["stops"].over
    train([lab("alone", **drawn)])
    for name in "ab":
        assert found[name].over
        same(lab(name).folder, lab("alone").folder)


def test_each_is_known_as_soon_as_it_has_ended(lab):
    """Those that fail or stop are not kept waiting by those that train."""
    order = []
    stops = {"train__stop": {"metric": "val_loss", "reach": 100.0}}
    requests = [lab("long", train__epochs=6), lab("stops", train__epochs=6, **stops),
                lab("bad", train__epochs=6, model={"class": "more.Failing"})]  # fmt: skip
    for request, _ in train_until(requests, None, Watch(), study="x", shared=SharedData()):
        last = lab("long", train__epochs=6).folder.checkpoints()
        order.append((request.folder.path.name, last[-1].step if last else 0))
    assert [name for name, _ in order] == ["stops", "bad", "long"]
    assert order[0][1] < order[2][1]


def test_a_signal_does_not_hide_how_others_have_ended(lab):
    stops = {"train__stop": {"metric": "val_loss", "reach": 100.0}}
    bad = {"model": {"class": "more.Failing", "at": 2}}
    watch = Watch()
    requests = [lab("good"), lab("stops", **stops), lab("bad", **bad)]
    found = {}
    for request, result in train_until(requests, None, watch, study="x", shared=SharedData()):
        found[request.folder.path.name] = result
        watch.number = signal.SIGTERM if len(found) == 2 else 0
    assert isinstance(found["good"], Interrupted), found
    assert isinstance(found["bad"], RunFailed)
    assert "no more of this" in str(found["bad"])
    assert found["stops"].over


def test_two_that_fail_have_their_tracebacks_in_their_logs(lab):
    found = train([lab(name, model={"class": "more.Failing", "at": 2}) for name in "ab"] + [lab("good")])
    for name in "ab":
        assert "run.log" in str(found[name])
        assert "no more of this" in (lab(name).folder.path / "run.log").read_text()
    assert found["good"].over


def test_an_interrupt_that_a_model_raises_is_its_own(lab, project):
    project.write(
        "src/rude.py",
        """
        from models import MLP


        class Rude(MLP):
            def forward(self, images):
                raise KeyboardInterrupt
        """,
    )
    found = train([lab("rude", model={"class": "rude.Rude"}), lab("good")])
    assert isinstance(found["rude"], Interrupted)
    assert found["good"].over


ROWS = """
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Counting(Sampler):
    def __init__(self):
        self.epoch, self.rng = 0, torch.Generator()

    def __iter__(self):
        self.epoch += 1
        return iter([(row + self.epoch) % 64 for row in torch.randperm(48, generator=self.rng).tolist()])

    def __len__(self):
        return 48


def load(config, flag):
    drawn = torch.Generator().manual_seed(len(flag))
    rows = TensorDataset(torch.randn(64, 64, generator=drawn), torch.arange(64) % 10)
    return DataLoader(rows, batch_size=16, sampler=Counting() if flag == "train" else None)
"""


def test_runs_with_different_seeds_share_a_sampler_with_state(lab, project):
    project.write("src/counted.py", ROWS)
    data = {"class": "manyfit.wrapper.LoaderData", "loader": "counted.load"}
    shared = SharedData()
    found = train([lab(name, data=data, seed=seed) for name, seed in (("a", 1), ("b", 2))], shared=shared)
    for name, seed in (("a", 1), ("b", 2)):
        assert found[name].over
        train([lab(f"alone-{name}", data=data, seed=seed)])
        same(lab(name, data=data, seed=seed).folder, lab(f"alone-{name}", data=data, seed=seed).folder)


@pytest.fixture
def without_turns(monkeypatch):
    """PyTorch as a kind that cannot take turns: no group may be made of its learners."""
    monkeypatch.setattr(TorchKind, "takes_turns", False)
    monkeypatch.setattr(session, "GroupLearner", None)


def test_kinds_that_cannot_take_turns_train_apart(lab, without_turns):
    drawing = {"model": {"class": "more.Drawing"}}
    failing = {"model": {"class": "more.Failing"}}
    found = train([lab("a", **drawing), lab("bad", **failing), lab("b", **drawing)])
    assert isinstance(found["bad"], RunFailed)
    assert "no more of this" in str(found["bad"])
    train([lab("alone", **drawing)])
    for name in "ab":
        assert found[name].over
        same(lab(name).folder, lab("alone").folder)


def test_one_that_trains_apart_is_interrupted_alone(lab, without_turns):
    found = train([lab("good"), lab("asked", After(2), seed=8)])
    assert isinstance(found["asked"], Interrupted)
    assert found["good"].over
    assert train([lab("asked", seed=8)])["asked"].over
    train([lab("alone", seed=8)])
    same(lab("asked").folder, lab("alone").folder)


def test_only_pytorch_modules_take_turns():
    """The random state of TensorFlow cannot be read, and nothing is known of other kinds."""
    found = {kind.name: kind for kind in map(_load_built_in, BUILT_IN) if kind.takes_turns}
    assert set(found) == {"torch", "own functions"}
    assert not found["own functions"].can_take_turns(SimpleNamespace(functions=Functions(None)))


@pytest.mark.parametrize("name", ["Stepping", "Drawing"])
def test_modules_take_turns_with_a_step_of_their_own_or_without(lab, name, monkeypatch):
    grouped = []
    real = session.GroupLearner
    monkeypatch.setattr(session, "GroupLearner", lambda parts: grouped.append(len(parts)) or real(parts))
    own = {"model": {"class": f"more.{name}"}}
    if name == "Stepping":
        own["train__loss"] = None
    train([lab("alone", **own)])
    found = train([lab("a", **own), lab("b", **own)])
    assert grouped and max(grouped) == 2
    for each in "ab":
        assert found[each].over
        same(lab(each).folder, lab("alone").folder)
