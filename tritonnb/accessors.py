"""Attributes that higher layers add to recordings, results and handles: class, name and provider."""

from __future__ import annotations

from functools import cached_property

from tritonnb.core.accessors import Accessor, register

#: By class and attribute.
ACCESSORS = {
    "tritonnb.recording.recording:Recording": {
        "plot": Accessor("tritonnb.figures.plot:plot", property),
        "view": Accessor("tritonnb.notebook.batch_view:view"),
        "to_html": Accessor("tritonnb.notebook.page:to_html"),
        "service": Accessor("tritonnb.recording.learned_times:service"),
        "outliers": Accessor("tritonnb.recording.learned_times:outliers", cached_property),
        "summary": Accessor("tritonnb.recording.summary:summary"),
        "verdict": Accessor("tritonnb.recording.summary:verdict"),
        "diagnoses": Accessor("tritonnb.recording.diagnoses:diagnoses"),
        "blame": Accessor("tritonnb.recording.blame:blame"),
        "what_if": Accessor("tritonnb.recording.what_if:what_if"),
        "to_perfetto": Accessor("tritonnb.recording.perfetto:to_perfetto"),
        "twin": Accessor("tritonnb.recording.twin:twin"),
        "debug": Accessor("tritonnb.recording.debugger:debug"),
        "worksheet": Accessor("tritonnb.teaching.exercises:recorded_worksheet"),
        "from_trace": Accessor("tritonnb.remote.from_trace:from_trace", staticmethod),
    },
    "tritonnb.recording.blame:Blame": {"remedies": Accessor("tritonnb.recording.remedies:remedies", cached_property)},
    "tritonnb.recording.twin:Twin": {
        "plot": Accessor("tritonnb.figures.twin:draw"),
        "plan": Accessor("tritonnb.recording.plan_search:plan"),
        "verify": Accessor("tritonnb.profile.verify:verify"),
    },
    "tritonnb.recording.plan:Plan": {"export": Accessor("tritonnb.scale.plan_files:export")},
    "tritonnb.profile.verify:Verification": {"plot": Accessor("tritonnb.figures.twin:draw_verification")},
    "tritonnb.recording.comparison:Comparison": {
        "plot": Accessor("tritonnb.figures.plot:plot_comparison"),
        "view": Accessor("tritonnb.notebook.batch_view:compare"),
    },
    "tritonnb.recording.debugger:Debugger": {"view": Accessor("tritonnb.notebook.debugger_view:view")},
    "tritonnb.teaching.worksheet:Worksheet": {"view": Accessor("tritonnb.notebook.worksheet_view:view")},
    "tritonnb.profile.result:LoadResult": {
        "plot": Accessor("tritonnb.figures.load:draw"),
        "plot_cdf": Accessor("tritonnb.figures.latency_cdf:draw_load"),
        "plot_tokens": Accessor("tritonnb.figures.load:draw_tokens"),
    },
    "tritonnb.profile.sweep_result:SweepResult": {
        "plot": Accessor("tritonnb.figures.sweep:draw"),
        "plot_pareto": Accessor("tritonnb.figures.sweep:draw_pareto"),
        "plot_throughput_latency": Accessor("tritonnb.figures.sweep:draw_curves"),
    },
    "tritonnb.server.server:Server": {
        "dashboard": Accessor("tritonnb.notebook.dashboard:open_dashboard"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:server_card"),
    },
    "tritonnb.server.model_handle:ModelHandle": {
        "plot": Accessor("tritonnb.figures.statistics:plot", property),
        "traffic": Accessor("tritonnb.notebook.traffic:open_traffic"),
        "edit": Accessor("tritonnb.notebook.config_editor:edit_config"),
        "watch": Accessor("tritonnb.notebook.live_batch_view:watch"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:model_card"),
    },
    "tritonnb.remote.connection:Remote": {
        "record": Accessor("tritonnb.remote.record:record"),
        "dashboard": Accessor("tritonnb.notebook.remote_view:dashboard"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:remote_card"),
    },
    "tritonnb.remote.model:RemoteModelHandle": {
        "plot": Accessor("tritonnb.figures.statistics:plot", property),
        "traffic": Accessor("tritonnb.notebook.traffic:open_traffic"),
        "edit": Accessor("tritonnb.notebook.remote_view:edit_remote_config"),
        "watch": Accessor("tritonnb.notebook.remote_view:watch"),
        "_repr_html_": Accessor("tritonnb.notebook.html_reprs:remote_model_card"),
    },
}
for owner, accessors in ACCESSORS.items():
    register(owner, accessors)
