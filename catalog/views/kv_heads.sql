-- One row a KV head of a measurement: the log-odds (nats) of the query heads that share it, and how many are below 0.
CREATE VIEW kv_heads AS
SELECT
    model_id,
    revision,
    spec_id,
    attempt_id,
    layer,
    kv_head,
    any_value(in_window) AS in_window,
    count(*) AS heads,
    median(log_odds) AS log_odds,
    min(log_odds) AS lowest_log_odds,
    max(log_odds) AS highest_log_odds,
    count(*) FILTER (WHERE log_odds < 0) AS weak_heads
FROM heads
GROUP BY model_id, revision, spec_id, attempt_id, layer, kv_head;
