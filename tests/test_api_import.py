"""``codesign.import_model``: the command's behaviour, file, refusals and all, from Python."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import codesign
from codesign.cli import run
from codesign.errors import CodesignError

CONFIG = Path(__file__).parent / "data" / "hf-configs" / "openai--gpt-oss-20b_config.json"

#: As published: 20.9 B parameters, 3.6 B active; 24 layers x 8 KV heads x 64 x 2, half of them within a window of 128.
PARAMETERS, ACTIVE, CACHE = 20.91e9, 3.61e9, 24 * 8 * 64 * 2 * 2


def test_the_answer_and_the_file_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = codesign.import_model(CONFIG, "mine", title="Mine", workspace=tmp_path / "python")
    assert run(("import-model", str(CONFIG), "--name", "mine", "--title", "Mine", "--json", "--workspace",
                str(tmp_path / "command"))) == 0  # fmt: skip
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    files = [Path(d.pop("file")) for d in (found, told)]
    assert found == told
    assert files[0] == tmp_path / "python" / "workloads" / "models" / "mine.toml"
    assert files[0].read_bytes() == files[1].read_bytes()
    assert tomllib.loads(files[0].read_text())["title"] == "Mine"
    assert found["counts"]["total_parameters"] == pytest.approx(PARAMETERS, rel=1e-3)
    assert found["counts"]["active_parameters"] == pytest.approx(ACTIVE, rel=1e-3)
    assert found["counts"]["kv_bytes_per_token"] == CACHE / 2


def test_an_imported_model_is_in_the_catalog_of_its_workspace(tmp_path: Path) -> None:
    codesign.import_model(str(CONFIG), "mine", workspace=str(tmp_path))
    assert codesign.load_model("mine", tmp_path).counts().total_parameters == pytest.approx(PARAMETERS, rel=1e-3)
    with pytest.raises(CodesignError, match="unknown model 'mine'"):
        codesign.load_model("mine")


def test_without_a_workspace_it_goes_to_the_folder_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = codesign.import_model(CONFIG, "mine")
    assert found["file"] == str(Path("workloads") / "models" / "mine.toml")
    assert (tmp_path / found["file"]).is_file()


def test_nothing_is_written_where_the_text_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = codesign.import_model(CONFIG, "mine", out="-")
    assert found["file"] is None
    assert list(tmp_path.iterdir()) == []
    assert run(("import-model", str(CONFIG), "--name", "mine", "--out", "-")) == 0
    assert capsys.readouterr().out == found["text"]
    written = codesign.import_model(CONFIG, "mine", out=tmp_path / "other.toml")
    assert "text" not in written
    assert (tmp_path / "other.toml").read_text() == found["text"]


def test_a_file_that_says_something_else_is_kept_unless_forced(tmp_path: Path) -> None:
    file = Path(codesign.import_model(CONFIG, "mine", workspace=tmp_path)["file"])
    before = file.read_bytes()
    assert codesign.import_model(CONFIG, "mine", workspace=tmp_path)["file"] == str(file)
    with pytest.raises(CodesignError, match=r"is there already .*--force"):
        codesign.import_model(CONFIG, "mine", title="Other", workspace=tmp_path)
    assert file.read_bytes() == before
    codesign.import_model(CONFIG, "mine", title="Other", workspace=tmp_path, force=True)
    assert tomllib.loads(file.read_text())["title"] == "Other"


def test_fields_are_set_and_a_name_of_the_catalog_is_told(tmp_path: Path) -> None:
    found = codesign.import_model(CONFIG, "gpt-oss-20b", workspace=tmp_path, set="config.num_experts_per_tok=8")
    assert any("also names the bundled model gpt-oss-20b" in note for note in found["notes"])
    # Twice the four experts of a token, of 24 layers: 3 x 2880 x 2880 weights and three biases each.
    more = 24 * 4 * (3 * 2880 * 2880 + 3 * 2880)
    assert found["counts"]["active_parameters"] == pytest.approx(ACTIVE + more, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a b"}, "--name: 'a b' is no name"),
        ({"name": None}, "--name: None is no name"),
        ({"config": 7}, "config: 7 is no path"),
        ({"config": None}, "config: None is no path"),
        ({"config": "nowhere.json"}, "nowhere.json: cannot be read"),
        ({"quantization": "nowhere.json"}, "nowhere.json: cannot be read"),
        ({"set": ["hidden_size=5"]}, "--set: 'hidden_size=5' is not config.key=value"),
        ({"set": ["config.hidden_size=large"]}, "hidden_size: 'large' is of the wrong type"),
        ({"set": ["config.architectures=[\"GptOsForCausalLM\"]", "config.model_type=x"]}, "nearest: GptOss"),
        ({"out": 5}, "--out: 5 is no path"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_line(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    asked = {"config": CONFIG, "name": "mine", "workspace": tmp_path} | given
    with pytest.raises(CodesignError, match=words):
        codesign.import_model(**asked)
    assert list(tmp_path.iterdir()) == []


def test_it_is_offered_by_the_package() -> None:
    assert "import_model" in codesign.__all__
    assert "config.json" in (codesign.import_model.__doc__ or "")
