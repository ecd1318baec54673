-- One row an attention layer of a measurement: its own sink position and runner-up by mean mass, beside the model's.
CREATE VIEW layer_sinks AS
WITH masses AS (
    SELECT
        attempt_id,
        layer,
        unnest(range(len(candidate_masses))) AS position,
        unnest(candidate_masses) AS mass
    FROM head_files
),

means AS (
    SELECT
        attempt_id,
        layer,
        position,
        CASE WHEN count(mass) = count(*) THEN avg(mass) END AS mass
    FROM masses
    GROUP BY attempt_id, layer, position
),

ordered AS (
    SELECT
        attempt_id,
        layer,
        list({'position': position, 'mass': mass} ORDER BY mass DESC, position) AS best
    FROM means
    WHERE mass IS NOT NULL
    GROUP BY attempt_id, layer
)

SELECT
    m.model_id,
    m.revision,
    m.spec_id,
    m.attempt_id,
    o.layer,
    o.layer >= m.attention_layers - m.window_layers AS in_window,
    o.best[1].position AS sink_position,
    o.best[1].mass AS sink_mass,
    o.best[2].position AS runner_up_position,
    o.best[2].mass AS runner_up_mass,
    o.best[1].position = m.sink_position AS agrees
FROM ordered AS o
INNER JOIN measurements AS m USING (attempt_id);
