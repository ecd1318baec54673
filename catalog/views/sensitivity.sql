-- One row a (measurement, other choice): the S (nats) that it would have; `plausible` marks choices as good as zoo's own.
CREATE VIEW sensitivity AS
WITH kept AS MATERIALIZED (
    SELECT *
    FROM slices
),

choices AS (
    SELECT
        attempt_id,
        1000 + size AS place,
        'subset' AS factor,
        size || ' prompts, seed ' || seed AS choice,
        sink_strength,
        true AS plausible,
        true AS same_scale
    FROM sweep_files
    UNION ALL
    SELECT
        attempt_id,
        2000 + size,
        'subset, content',
        size || ' prompts, seed ' || seed,
        sink_strength_content,
        true,
        true
    FROM sweep_files
    UNION ALL
    SELECT
        attempt_id,
        3000 + coalesce(window_layers, 999),
        'window',
        coalesce('last ' || window_layers || ' layers', 'all layers'),
        sink_strength,
        true,
        true
    FROM windows
    UNION ALL
    SELECT
        attempt_id,
        CASE WHEN slice IN ('all', 'content') THEN 4000 WHEN slice IN ('short', 'middle', 'long') THEN 5000 ELSE 6000 END
        + place,
        CASE
            WHEN slice IN ('all', 'content') THEN 'queries'
            WHEN slice IN ('short', 'middle', 'long') THEN 'prompt length'
            ELSE 'query band'
        END,
        CASE WHEN slice IN ('short', 'middle', 'long') THEN slice || ' third' ELSE slice END,
        sink_strength,
        -- Few keys flatter a sink and a chat template fills the first bands, so a band alone is no choice for S.
        slice IN ('all', 'content', 'short', 'middle', 'long'),
        true
    FROM kept
    UNION ALL
    SELECT attempt_id, 7001, 'statistic', 'mean log-odds', mean_log_odds, true, true
    FROM kept
    WHERE slice = 'all'
    UNION ALL
    -- It orders models, but its zero means uniform attention, so its sign says nothing of S's.
    SELECT attempt_id, 7002, 'statistic', 'mean log-odds + ln(keys)', lift, true, false
    FROM kept
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
