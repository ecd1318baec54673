-- One row a ranked model: which plausible choices change the sign of its S, or swap it with its neighbour in the ranking.
CREATE VIEW doubts AS
WITH places AS MATERIALIZED (
    SELECT
        spec_id,
        model_id,
        revision,
        rank,
        lag(model_id) OVER by_strength AS above,
        lag(revision) OVER by_strength AS above_revision
    FROM ranking
    WINDOW by_strength AS (PARTITION BY spec_id ORDER BY rank, model_id)
),

choices AS MATERIALIZED (
    SELECT *
    FROM sensitivity
    WHERE plausible
),

signs AS (
    SELECT
        attempt_id,
        spec_id,
        model_id,
        revision,
        count(*) AS choices,
        list(factor || ': ' || choice ORDER BY place, choice) FILTER (WHERE changes_sign) AS sign_changes,
        bool_or(factor = 'statistic') AS complete
    FROM choices
    GROUP BY attempt_id, spec_id, model_id, revision
),

swaps AS MATERIALIZED (
    SELECT
        p.spec_id,
        p.model_id,
        p.revision,
        any_value(p.above) AS above,
        any_value(p.above_revision) AS above_revision,
        list(c.factor || ': ' || c.choice ORDER BY c.place, c.choice) AS swapped_in
    FROM places AS p
    INNER JOIN choices AS c USING (spec_id, model_id, revision)
    INNER JOIN choices AS a
        ON a.spec_id = p.spec_id
        AND a.model_id = p.above
        AND a.revision = p.above_revision
        AND a.factor = c.factor
        AND a.choice = c.choice
    WHERE c.sink_strength > a.sink_strength
    GROUP BY p.spec_id, p.model_id, p.revision
)

SELECT
    p.rank,
    p.model_id,
    p.revision,
    p.spec_id,
    s.choices,
    coalesce(s.sign_changes, []) AS sign_changes,
    up.above AS overtakes,
    coalesce(up.swapped_in, []) AS overtakes_in,
    down.model_id AS overtaken_by,
    coalesce(down.swapped_in, []) AS overtaken_in,
    -- Without the slices of schema 2 only subsets and windows were tried: zoo screen --force measures them.
    s.complete
FROM places AS p
LEFT JOIN signs AS s USING (spec_id, model_id, revision)
LEFT JOIN swaps AS up USING (spec_id, model_id, revision)
LEFT JOIN swaps AS down
    ON down.spec_id = p.spec_id AND down.above = p.model_id AND down.above_revision = p.revision
ORDER BY p.spec_id, p.rank, p.model_id;
