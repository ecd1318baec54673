-- One row a (measurement, window): S (nats) over the heads of the last 5, 10, 15 and all (NULL) attention layers.
CREATE VIEW windows AS
SELECT
    m.model_id,
    m.revision,
    m.spec_id,
    m.attempt_id,
    w.window_layers,
    median(h.log_odds) AS sink_strength,
    CASE WHEN count(h.log_odds_content) = count(*) THEN median(h.log_odds_content) END AS sink_strength_content,
    avg((h.log_odds < 0)::INTEGER) AS weak_head_share
FROM head_files AS h
INNER JOIN measurements AS m USING (attempt_id)
INNER JOIN (VALUES (5), (10), (15), (NULL)) AS w (window_layers)
    ON w.window_layers IS NULL OR h.layer >= m.attention_layers - w.window_layers
GROUP BY ALL;
