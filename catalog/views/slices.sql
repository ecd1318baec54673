-- One row a (measurement, slice of its queries or prompts): S (nats) there by three statistics; NULL where it has no query.
CREATE VIEW slices AS
WITH unnested AS (
    SELECT
        attempt_id,
        -- The order of SLICES in zoo/records.py.
        unnest(['all', 'content', '8-16', '16-32', '32-64', '64+', 'short', 'middle', 'long']) AS slice,
        unnest(range(9)) AS place,
        unnest(slice_log_odds)::DOUBLE AS log_odds,
        unnest(slice_mean_log_odds)::DOUBLE AS mean_log_odds,
        unnest(slice_lift)::DOUBLE AS lift
    FROM head_files
    WHERE in_window AND slice_log_odds IS NOT NULL
)

SELECT
    m.model_id,
    m.revision,
    m.spec_id,
    m.attempt_id,
    u.slice,
    u.place,
    -- A median over some of the heads would be of another model.
    CASE WHEN count(u.log_odds) = count(*) THEN median(u.log_odds) END AS sink_strength,
    CASE WHEN count(u.mean_log_odds) = count(*) THEN median(u.mean_log_odds) END AS mean_log_odds,
    -- The mean of log-odds + ln(other visible keys): 0 under uniform attention, however many keys there are.
    CASE WHEN count(u.lift) = count(*) THEN median(u.lift) END AS lift
FROM unnested AS u
INNER JOIN measurements AS m USING (attempt_id)
GROUP BY ALL;
