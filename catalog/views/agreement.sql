-- One row a (spec, choice): Kendall's tau between the ranking by S and the ranking that this choice gives.
CREATE VIEW agreement AS
WITH placed AS MATERIALIZED (
    SELECT
        s.spec_id,
        s.factor,
        s.choice,
        s.place,
        s.sink_strength AS chosen,
        r.sink_strength AS own,
        row_number() OVER (PARTITION BY s.spec_id, s.factor, s.choice ORDER BY r.rank, r.model_id) AS nth
    FROM sensitivity AS s
    INNER JOIN ranking AS r USING (spec_id, model_id, revision)
)

SELECT
    a.spec_id,
    a.factor,
    a.choice,
    max(b.nth) AS models,
    avg(sign(a.own - b.own) * sign(a.chosen - b.chosen)) AS kendall_tau,
    count(*) FILTER (WHERE sign(a.own - b.own) * sign(a.chosen - b.chosen) < 0) AS swapped_pairs
FROM placed AS a
INNER JOIN placed AS b
    ON a.spec_id = b.spec_id AND a.factor = b.factor AND a.choice = b.choice AND a.nth < b.nth
GROUP BY a.spec_id, a.factor, a.choice, a.place
ORDER BY a.spec_id, a.place, a.choice;
