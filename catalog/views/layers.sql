-- One row an attention layer of a measurement: medians over its heads, log-odds in nats and masses in 0..1.
CREATE VIEW layers AS
SELECT
    model_id,
    revision,
    spec_id,
    attempt_id,
    layer,
    model_layer,
    any_value(in_window) AS in_window,
    any_value(sliding_window) AS sliding_window,
    count(*) AS heads,
    median(log_odds) AS log_odds,
    median(log_odds_content) AS log_odds_content,
    median(mass) AS mass,
    min(log_odds) AS lowest_log_odds,
    max(log_odds) AS highest_log_odds,
    quantile_cont(log_odds, [0.1, 0.25, 0.75, 0.9]) AS quantiles,
    count(*) FILTER (WHERE log_odds < 0) AS weak_heads
FROM heads
GROUP BY model_id, revision, spec_id, attempt_id, layer, model_layer
ORDER BY spec_id, model_id, revision, layer;
