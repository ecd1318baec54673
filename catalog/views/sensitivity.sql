-- One row a (measurement, other choice): the S (nats) that it would have; `plausible` marks choices as good as zoo's own.
CREATE VIEW sensitivity AS
WITH choices AS (
    SELECT
        attempt_id,
        1 AS place,
        'subset' AS factor,
        size || ' prompts, seed ' || seed AS choice,
        sink_strength,
        true AS plausible,
        true AS same_scale
    FROM sweep_files
    UNION ALL
    SELECT attempt_id, 2, 'subset, content', size || ' prompts, seed ' || seed, sink_strength_content, true, true
    FROM sweep_files
    UNION ALL
    SELECT
        attempt_id,
        3,
        'window',
        coalesce('last ' || window_layers || ' layers', 'all layers'),
        sink_strength,
        true,
        true
    FROM windows
    UNION ALL
    SELECT attempt_id, 4, 'queries', slice, sink_strength, true, true
    FROM slices
    WHERE slice IN ('all', 'content')
    UNION ALL
    SELECT attempt_id, 5, 'prompt length', slice || ' third', sink_strength, true, true
    FROM slices
    WHERE slice IN ('short', 'middle', 'long')
    UNION ALL
    -- Few keys flatter a sink and a chat template fills the first bands, so a band alone is no choice for S.
    SELECT attempt_id, 6, 'query band', slice, sink_strength, false, true
    FROM slices
    WHERE slice IN ('8-16', '16-32', '32-64', '64+')
    UNION ALL
    SELECT attempt_id, 7, 'statistic', 'mean log-odds', mean_log_odds, true, true
    FROM slices
    WHERE slice = 'all'
    UNION ALL
    -- It orders models, but its zero means uniform attention, so its sign says nothing of S's.
    SELECT attempt_id, 8, 'statistic', 'mean log-odds + ln(keys)', lift, true, false
    FROM slices
    WHERE slice = 'all'
)

SELECT
    m.model_id,
    m.revision,
    m.spec_id,
    m.attempt_id,
    c.factor,
    c.choice,
    c.sink_strength,
    c.sink_strength - m.sink_strength AS shift,
    c.same_scale AND c.plausible AND (c.sink_strength > 0) != (m.sink_strength > 0) AS changes_sign,
    c.plausible,
    c.same_scale,
    c.place
FROM choices AS c
INNER JOIN measurements AS m USING (attempt_id)
WHERE c.sink_strength IS NOT NULL;
