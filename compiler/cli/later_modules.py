"""Modules that commands import at their first use: a command loads only what it needs.

from tcc.cli.later_modules import driver
"""

from typing import TYPE_CHECKING

from tcc.later import later

if TYPE_CHECKING:
    from tcc import driver as driver
    from tcc import options as options
    from tcc import rank_plans as rank_plans
    from tcc.backends.artifact import planner as planner
    from tcc.backends.cpu import calibrate as calibrate
    from tcc.backends.cpu import compile as compile
    from tcc.cli import decisions as decisions
    from tcc.cli import derivations as derivations
    from tcc.cli import quantization as quantization
    from tcc.cli import sweeping as sweeping
    from tcc.distributed import cluster as cluster
    from tcc.distributed import costs as costs
    from tcc.distributed import facts as facts
    from tcc.distributed import layers as layers
    from tcc.distributed import plan as plan
    from tcc.ir import graph as graph
    from tcc.ir import narrow as narrow
    from tcc.ir.program import text as text
    from tcc.passes import forms as forms
    from tcc.runtime import comm as comm
    from tcc.runtime import graph_files as graph_files
    from tcc.runtime import host_program as host_program
    from tcc.runtime import input_texts as input_texts
    from tcc.runtime import plan_picture as plan_picture
    from tcc.runtime import preprocess as preprocess
    from tcc.runtime import profile as profile
    from tcc.runtime import profile_text as profile_text
    from tcc.runtime import program_sizes as program_sizes
    from tcc.runtime import ranking as ranking
    from tcc.runtime import result_text as result_text
    from tcc.schedule.cpu import machine_file as machine_file
    from tcc.schedule.cpu import shipped_machines as shipped_machines
    from tcc.tune import check as check
    from tcc.tune import from_records as from_records
    from tcc.tune import lock as lock
    from tcc.tune import lock_file as lock_file
    from tcc.tune import pin as pin
    from tcc.tune import records as records
    from tcc.tune import summary as summary
else:
    # The same modules, by the last part of their names.
    _MODULES = """
    tcc.backends.artifact.planner tcc.backends.cpu.calibrate tcc.backends.cpu.compile
    tcc.cli.decisions tcc.cli.derivations tcc.cli.quantization tcc.cli.sweeping
    tcc.distributed.cluster tcc.distributed.costs tcc.distributed.facts tcc.distributed.layers
    tcc.distributed.plan tcc.driver tcc.ir.graph tcc.ir.narrow tcc.ir.program.text tcc.options
    tcc.passes.forms tcc.rank_plans tcc.runtime.comm tcc.runtime.graph_files
    tcc.runtime.host_program tcc.runtime.input_texts tcc.runtime.plan_picture tcc.runtime.preprocess
    tcc.runtime.profile tcc.runtime.profile_text tcc.runtime.program_sizes tcc.runtime.ranking
    tcc.runtime.result_text tcc.schedule.cpu.machine_file tcc.schedule.cpu.shipped_machines
    tcc.tune.check tcc.tune.from_records tcc.tune.lock tcc.tune.lock_file tcc.tune.pin
    tcc.tune.records tcc.tune.summary
    """
    globals().update({name.rpartition(".")[2]: later(name) for name in _MODULES.split()})
