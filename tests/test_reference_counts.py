"""Counts of layers against compiled programs over 8 devices, and the reader of programs against hand counts."""

import json
import subprocess
import sys
from typing import Any

import pytest

from codesign.reference.processes import DEVICES, ask, environment
from codesign.reference.programs import read_hlo
from codesign.reference.verify import DEVIATION, EXACT

#: Small layers of every kind in many splits; each case is compiled once and run.
SCRIPT = """
import json
from codesign.runtime import prepare
prepare()
from codesign.layers import gdn, gqa, kda, lightning, mamba2, mla, mlp, moe
from codesign.reference.cases import gqa_case, mla_case, mlp_case, moe_case
from codesign.reference.parts import Part
from codesign.reference.state_cases import state_case
from codesign.reference.verify import compare

full = gqa.GQA(heads=16, kv_heads=4, key_width=8, value_width=16)
window = gqa.GQA(heads=8, kv_heads=8, key_width=8, value_width=8, window=32, bias=True, sinks=True, head_gate=True)
low = gqa.GQA(heads=8, kv_heads=1, key_width=16, value_width=16, q_rank=24, tied_values=True, gate=True)
latent = mla.MLA(heads=8, q_rank=None, kv_rank=32, nope=16, rope=8, value=8)
fine = kda.KDA(heads=8, value_heads=16, key_width=8, value_width=16, decay_rank=8, gate_rank=8)
coarse = gdn.GDN(heads=8, value_heads=16, key_width=8, value_width=8)
fixed = lightning.Lightning(heads=8, key_width=16, value_width=8)
grouped = mamba2.Mamba2(heads=16, head_width=8, state_width=16, groups=2)
plain = moe.MoE(experts=8, top_k=2, inner=32, gated=False, bias=True)
three = moe.MoE(experts=8, top_k=3, inner=16, shared_inner=32, groups=4, top_groups=2, router_bias=True)
h = 48
cases = {
    "full, TP 4": gqa_case(full, h, Part(tp=4, dp=2)),
    "full, by context": gqa_case(full, h, Part(tp=8, context=True)),
    "full, a prompt": gqa_case(full, h, Part(tp=2, dp=1), new=3),
    "window, by context": gqa_case(window, h, Part(tp=8, context=True)),
    "low rank, TP 2": gqa_case(low, h, Part(tp=2, dp=4)),
    "latent, one chip": mla_case(latent, h, Part(dp=8)),
    "latent, by context": mla_case(latent, h, Part(tp=4, dp=2, context=True)),
    "latent, expanded": mla_case(latent, h, Part(tp=8), new=7, expanded=True),
    "kda, TP 4": state_case(fine, h, Part(tp=4, dp=2)),
    "gated DeltaNet, TP 8": state_case(coarse, h, Part(tp=8)),
    "gated DeltaNet, chunks": state_case(coarse, h, Part(tp=2, dp=1), new=128),
    "lightning, TP 8": state_case(fixed, h, Part(tp=8)),
    "lightning, chunks": state_case(fixed, h, Part(tp=2, dp=1), new=128),
    "mamba, half a group": state_case(grouped, h, Part(tp=4, dp=2)),
    "mamba, chunks": state_case(grouped, h, Part(tp=2, dp=1), new=128),
    "feed-forward, TP 8": mlp_case(mlp.MLP(inner=64), h, Part(tp=8)),
    "mixture, EP 8": moe_case(plain, h, Part(dp=8, ep=8)),
    "mixture, EP 4 of 8": moe_case(plain, h, Part(dp=8, ep=4)),
    "mixture, TP 8 EP 4": moe_case(plain, h, Part(tp=8, ep=4)),
    "groups, TP 4 DP 2": moe_case(three, h, Part(tp=4, dp=2, ep=4)),
    "groups, one group of chips": moe_case(three, h, Part(tp=4, ep=4)),
}
print(json.dumps({name: compare(name, case) for name, case in cases.items()}))
"""

CASES = [line.strip().split('"')[1] for line in SCRIPT.splitlines() if line.startswith('    "')]


def answered(script: str) -> dict[str, Any]:
    """What a script prints last, run over 8 devices."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(DEVICES), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return answered(SCRIPT)


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_compiled_program(case: str, compared: dict[str, Any]) -> None:
    check(*compared[case])


def check(operations: list[dict[str, Any]], program: dict[str, Any]) -> None:
    """Every operation as counted, and the same answer as on one device."""
    assert operations
    for row in operations:
        for what in ("flop", "sent_bytes"):
            pair = row[what]
            assert pair["compiled"] == pytest.approx(pair["counted"], rel=EXACT), (row["operation"], what)
        assert row["status"] == "exact"
    assert program["deviation"] < DEVIATION


def test_every_kind_of_collective_is_executed(compared: dict[str, Any]) -> None:
    found: dict[str, float] = {}
    for _, program in compared.values():
        for kind, sent in program["sent_bytes_by_kind"].items():
            found[kind] = found.get(kind, 0.0) + sent
    assert {"all-reduce", "all-gather", "all-to-all"} <= found.keys()
    assert all(sent > 0 for sent in found.values())


def test_by_hand(compared: dict[str, Any]) -> None:
    """Some of these numbers worked out from the sizes, apart from both the count and the reader."""

    def cell(case: str, operation: str, what: str) -> float:
        return next(row for row in compared[case][0] if row["operation"] == operation)[what]["compiled"]

    # 8 tokens over 48 x (2 x 64/8) and back, and 8 x 48 floats summed by a ring of 8.
    assert cell("feed-forward, TP 8", "up", "flop") == 2 * 8 * 48 * 16
    assert cell("feed-forward, TP 8", "down", "flop") == 2 * 8 * 8 * 48
    assert cell("feed-forward, TP 8", "all_reduce", "sent_bytes") == 2 * 7 / 8 * 8 * 48 * 4
    # 4 of 16 heads over 64 keys: widths 8 and 16.
    assert cell("full, TP 4", "scan", "flop") == 2 * 8 * 64 * 4 * (8 + 16)
    # Queries of 8 sequences and 16 heads gathered, answers and their sums exchanged: 7/8 of 25 floats each; with them
    # the key and value of the one head that a chip projects.
    assert cell("full, by context", "context_merge", "sent_bytes") == 7 / 8 * 8 * (16 * 25 + 24) * 4
    # Three new tokens behind 61 see 62, 63 and 64 keys, on 8 of 16 heads.
    assert cell("full, a prompt", "scan", "flop") == 2 * 8 * (62 + 63 + 64) * 8 * (8 + 16)
    # One state of 8 x 16 per head, 4 of 16 heads: read for the correction and for the answer.
    assert cell("kda, TP 4", "state", "flop") == 8 * 4 * (2 * 2 * 8 * 16)
    # Without a correction the state of one head, 16 x 8, is read once; in chunks it is read and written by products.
    assert cell("lightning, TP 8", "state", "flop") == 8 * 1 * (2 * 16 * 8)
    assert cell("lightning, chunks", "state", "flop") == 128 * 4 * (2 * 64 * (16 + 8) + 2 * 2 * 16 * 8)
    # Scores of one group serve its 8 heads; x, z and steps of 4 heads, B and C of the one group that 2 chips share.
    assert cell("mamba, chunks", "state", "flop") == 128 * (2 * 64 * (16 + 8 * 8) + 2 * 2 * 8 * 8 * 16)
    assert cell("mamba, half a group", "qkv", "flop") == 2 * 8 * 48 * (2 * 4 * 8 + 4 + 2 * 16)
    # 28 pairs of 8 experts on each of 8 chips: every expert is met 7 times by each chip's tokens, 56 in all.
    assert cell("mixture, EP 8", "experts", "flop") == 56 * 2 * (2 * 48 * 32)
    # A token's two experts lie on two chips, one of 8 destinations is the sender: 28 x 2 x 7/8 rows of 48 floats,
    # with the number and the gate of both experts.
    assert cell("mixture, EP 8", "dispatch", "sent_bytes") == 28 * 2 * 7 / 8 * (48 + 4) * 4


HLO = """
HloModule jit_f, entry_computation_layout={()->f32[4,8]{1,0}}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %w = f32[8,8]{1,0} parameter(1)
  %x = f32[4,8]{1,0} parameter(2)
  %d = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/a/dot"}
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%i, %d)
}

%inside (p: f32[3,4,8], q: f32[3,8,2]) -> f32[3,4,2] {
  %p = f32[3,4,8]{2,1,0} parameter(0)
  %q = f32[3,8,2]{2,1,0} parameter(1)
  ROOT %e = f32[3,4,2]{2,1,0} dot(%p, %q), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x.1 = f32[4,8]{1,0} parameter(0)
  %loop = (s32[], f32[4,8]{1,0}) while(%init), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %f = f32[3,4,2]{2,1,0} fusion(%u, %v), kind=kCustom, calls=%inside, metadata={op_name="jit(f)/b/c/dot"}
  %r = f32[4,8]{1,0} all-reduce(%x.1), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add, metadata={op_name="jit(f)/s/psum"}
  %g = f32[16,8]{1,0} all-gather(%x.1), replica_groups=[2,4]<=[8], dimensions={0}, metadata={op_name="jit(f)/s/g"}
  %k = f32[1,8]{1,0} reduce-scatter(%x.1), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, to_apply=%add
  %y = (f32[2,8]{1,0}, f32[2,8]{1,0}) all-to-all(%m, %n), replica_groups={{0,1},{2,3}}, metadata={op_name="jit(f)/t/x"}
  ROOT %z = bf16[4,8]{1,0} collective-permute(%x.1), source_target_pairs={{0,1}}, metadata={op_name="jit(f)/t/p"}
}
"""  # noqa: E501 - as the compiler writes it


def test_reading_a_program() -> None:
    flop, sent, kinds, unnamed = read_hlo(HLO, frozenset("abst"))
    # A loop of five products, and one in a fusion that carries the name.
    assert flop == {"a": 5 * 2 * 4 * 8 * 8, "b": 2 * 3 * 4 * 2 * 8}
    assert unnamed == []
    payload = 4 * 8 * 4
    assert kinds == {
        "all-reduce": 2 * 3 / 4 * payload,
        "all-gather": 3 * payload,  # a quarter of what is made, to three others
        "reduce-scatter": 3 / 4 * payload,
        "all-to-all": 1 / 2 * payload,
        "collective-permute": payload / 2,
    }
    assert sent == {
        "s": 2 * 3 / 4 * payload + 3 * payload, "other": 3 / 4 * payload, "t": 1 / 2 * payload + payload / 2,
    }  # fmt: skip


def test_a_loop_of_unknown_length_is_no_count() -> None:
    with pytest.raises(ValueError, match="length"):
        read_hlo(HLO.replace("known_trip_count", "unknown"), frozenset("ab"))


#: Together they have every kind of layer.
MODELS = (
    "kimi-k3", "deepseek-v3", "gpt-oss-120b", "llama-3.1-70b", "qwen3-next-80b-a3b", "minimax-m1", "minimax-m3",
    "nemotron3-super-120b", "glm-5.2", "deepseek-v4-flash",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_models_verify(model: str) -> None:
    found = ask({"task": "counts", "model": model})
    assert {entry["kind"] for entry in found["not_executed"]} <= {"elementwise", "drafter"}
    assert found["exact"], [row for row in found["operations"] if row["status"] == "differs"]
    assert {row["block"] for row in found["operations"]} >= set(found["executed"]["blocks"])
