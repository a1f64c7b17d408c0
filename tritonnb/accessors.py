"""Attributes that higher layers add to recordings, results and handles: class, name and provider."""

from __future__ import annotations

from functools import cached_property

from tritonnb.core.accessors import Accessor, register

#: By class and attribute.
ACCESSORS = {
    "tritonnb.recording.recording:Recording": {
        "plot": Accessor("tritonnb.lab.figures.plot:plot", property),
        "view": Accessor("tritonnb.notebook.batch_view:view"),
        "to_html": Accessor("tritonnb.notebook.page:to_html"),
        "service": Accessor("tritonnb.lab.analysis.recorded_times:service"),
        "outliers": Accessor("tritonnb.lab.analysis.recorded_times:outliers", cached_property),
        "late_starts": Accessor("tritonnb.lab.analysis.recorded_times:late_starts", cached_property),
        "summary": Accessor("tritonnb.lab.analysis.summary:summary"),
        "verdict": Accessor("tritonnb.lab.analysis.summary:verdict"),
        "diagnoses": Accessor("tritonnb.lab.analysis.diagnoses:diagnoses"),
        "blame": Accessor("tritonnb.lab.analysis.tail_blame:blame"),
        "what_if": Accessor("tritonnb.lab.analysis.what_if:what_if"),
        "to_perfetto": Accessor("tritonnb.lab.analysis.perfetto:to_perfetto"),
        "twin": Accessor("tritonnb.lab.prediction.twin:twin"),
        "debug": Accessor("tritonnb.lab.analysis.debugger:debug"),
        "worksheet": Accessor("tritonnb.lab.teaching.exercises:recorded_worksheet"),
        "from_trace": Accessor("tritonnb.lab.traces.from_trace:from_trace", staticmethod),
    },
    "tritonnb.lab.analysis.blame:Blame": {
        "remedies": Accessor("tritonnb.lab.analysis.remedies:remedies", cached_property)
    },
    "tritonnb.lab.prediction.twin:Twin": {
        "plot": Accessor("tritonnb.lab.figures.twin:draw"),
        "plan": Accessor("tritonnb.lab.prediction.plan_search:plan"),
        "verify": Accessor("tritonnb.lab.prediction.verify:verify"),
    },
    "tritonnb.lab.prediction.plan:Plan": {"export": Accessor("tritonnb.scale.plan_files:export")},
    "tritonnb.lab.prediction.verify:Verification": {"plot": Accessor("tritonnb.lab.figures.twin:draw_verification")},
    "tritonnb.lab.analysis.comparison:Comparison": {
        "plot": Accessor("tritonnb.lab.figures.plot:plot_comparison"),
        "view": Accessor("tritonnb.notebook.batch_view:compare"),
    },
    "tritonnb.lab.analysis.debugger:Debugger": {"view": Accessor("tritonnb.notebook.debugger_view:view")},
    "tritonnb.lab.teaching.worksheet:Worksheet": {
        "view": Accessor("tritonnb.notebook.worksheet_view:view"),
        "grade_class": Accessor("tritonnb.lab.teaching.class_answers:grade_class"),
    },
    "tritonnb.lab.load.result:LoadResult": {
        "plot": Accessor("tritonnb.lab.figures.load:draw"),
        "plot_cdf": Accessor("tritonnb.lab.figures.latency_cdf:draw_load"),
        "plot_tokens": Accessor("tritonnb.lab.figures.load:draw_tokens"),
    },
    "tritonnb.lab.load.sweep_result:SweepResult": {
        "plot": Accessor("tritonnb.lab.figures.sweep:draw"),
        "plot_pareto": Accessor("tritonnb.lab.figures.sweep:draw_pareto"),
        "plot_throughput_latency": Accessor("tritonnb.lab.figures.sweep:draw_curves"),
    },
    "tritonnb.server.server:Server": {
        "dashboard": Accessor("tritonnb.notebook.dashboard:open_dashboard"),
        "simulate": Accessor("tritonnb.lab.simulation.simulated_model:simulate"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:server_card"),
    },
    "tritonnb.server.model_handle:ModelHandle": {
        "plot": Accessor("tritonnb.lab.figures.statistics:plot", property),
        "traffic": Accessor("tritonnb.notebook.traffic:open_traffic"),
        "edit": Accessor("tritonnb.notebook.config_editor:edit_config"),
        "watch": Accessor("tritonnb.notebook.live_batch_view:watch"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:model_card"),
    },
    "tritonnb.client.connection:Remote": {
        "record": Accessor("tritonnb.lab.traces.record:record"),
        "verdict": Accessor("tritonnb.lab.explain.live:verdict"),
        "dashboard": Accessor("tritonnb.notebook.remote_view:dashboard"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:remote_card"),
    },
    "tritonnb.client.connection:RemoteModelHandle": {
        "verdict": Accessor("tritonnb.lab.explain.live:verdict"),
        "plot": Accessor("tritonnb.lab.figures.statistics:plot", property),
        "traffic": Accessor("tritonnb.notebook.traffic:open_traffic"),
        "edit": Accessor("tritonnb.notebook.remote_view:edit_remote_config"),
        "watch": Accessor("tritonnb.notebook.remote_view:watch"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:remote_model_card"),
    },
}
for owner, accessors in ACCESSORS.items():
    register(owner, accessors)
