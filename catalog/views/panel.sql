-- The pairs with known degradation, with the Sink Strength of their reference LLM once it is measured (per spec_id).
CREATE VIEW panel AS
SELECT
    p.pair_id,
    p.reference_llm,
    p.vlm,
    p.task,
    p.protocol,
    p.delta_points,
    p.stderr_points,
    p.qk_norm,
    r.spec_id,
    r.revision,
    r.sink_strength,
    r.qk_norm AS measured_qk_norm,
    p.origin,
    p.source,
    p.place,
    p.replaces,
    -- Own files that cannot be used have one row that says why.
    p.problem
FROM panel_pairs AS p
LEFT JOIN ranking AS r ON r.model_id = p.reference_llm
ORDER BY p.task, p.protocol, p.delta_points DESC;
