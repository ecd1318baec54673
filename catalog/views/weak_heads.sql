-- One row a measurement: how its heads that count are spread (log-odds in nats), which a healthy median can hide.
CREATE VIEW weak_heads AS
WITH spread AS (
    SELECT
        attempt_id,
        count(*) AS heads,
        avg((log_odds < 0)::INTEGER) AS share_below_0,
        quantile_cont(log_odds, [0.1, 0.25, 0.5, 0.75, 0.9]) AS quantiles
    FROM heads
    WHERE in_window
    GROUP BY attempt_id
),

groups AS (
    SELECT
        attempt_id,
        count(*) AS kv_heads,
        count(*) FILTER (WHERE weak_heads = heads) AS weak_kv_heads
    FROM kv_heads
    WHERE in_window
    GROUP BY attempt_id
),

sinks AS (
    SELECT
        attempt_id,
        list(layer ORDER BY layer) FILTER (WHERE NOT agrees) AS disagreeing_layers
    FROM layer_sinks
    GROUP BY attempt_id
)

SELECT
    m.model_id,
    m.revision,
    m.spec_id,
    m.attempt_id,
    m.qk_norm,
    m.sink_strength,
    s.heads,
    s.share_below_0,
    s.quantiles[1] AS q10,
    s.quantiles[2] AS q25,
    s.quantiles[3] AS q50,
    s.quantiles[4] AS q75,
    s.quantiles[5] AS q90,
    g.kv_heads,
    -- KV heads whose query heads are all below 0.
    g.weak_kv_heads,
    m.sink_position,
    m.runner_up_position,
    m.runner_up_mass,
    coalesce(k.disagreeing_layers, []) AS disagreeing_layers
FROM spread AS s
INNER JOIN groups AS g USING (attempt_id)
INNER JOIN sinks AS k USING (attempt_id)
INNER JOIN measurements AS m USING (attempt_id)
ORDER BY m.spec_id, m.sink_strength DESC;
