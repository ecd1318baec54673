-- One row a spec_id with measurements, the most recent first: what its results depend on, and how many models it has.
CREATE VIEW specs AS
SELECT
    spec_id,
    count(DISTINCT model_id) AS models,
    max(started_at) AS last_started_at,
    any_value(prompts_digest) AS prompts_digest,
    any_value(prompt_count) AS prompt_count,
    any_value(prompt_policy) AS prompt_policy,
    any_value(candidate_positions) AS candidate_positions,
    any_value(window_layers) AS window_layers,
    any_value(query_rule) AS query_rule,
    any_value(definition) AS definition
FROM measurements
GROUP BY spec_id
ORDER BY last_started_at DESC NULLS LAST, max(finished_at) DESC;
