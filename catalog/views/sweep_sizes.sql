-- One row a (measurement, subset size): how S (nats) spreads over the seeds, and how that compares with 1/sqrt(size).
CREATE VIEW sweep_sizes AS
WITH sizes AS (
    SELECT
        attempt_id,
        size,
        count(*) AS seeds,
        avg(sink_strength) AS mean,
        min(sink_strength) AS low,
        max(sink_strength) AS high,
        stddev_samp(sink_strength) AS std,
        stddev_samp(sink_strength_content) AS std_content,
        count(*) FILTER (WHERE sink_strength > 0) / count(*) AS positive_share
    FROM sweep_files
    GROUP BY attempt_id, size
)

SELECT
    m.model_id,
    m.revision,
    m.spec_id,
    m.attempt_id,
    s.size,
    s.seeds,
    s.mean,
    s.low,
    s.high,
    s.high - s.low AS range,
    s.std,
    s.std_content,
    CASE WHEN m.sink_strength > 0 THEN s.positive_share ELSE 1 - s.positive_share END AS same_sign_share,
    -- Constant over sizes where the spread falls as 1/sqrt(size), drawn without replacement.
    CASE WHEN s.size < m.prompt_count
        THEN s.std / sqrt(1 / s.size - 1 / m.prompt_count)
    END AS std_per_prompt
FROM sizes AS s
INNER JOIN measurements AS m USING (attempt_id);
