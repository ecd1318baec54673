-- Points each measured model is predicted to lose on each task (negative = lost), with a prediction interval and flags.
CREATE VIEW predictions AS
WITH placed AS (
    SELECT
        m.model_id,
        m.revision,
        m.spec_id,
        m.sink_strength,
        m.qk_norm,
        m.parameters,
        m.learned_sink,
        m.attention_layers < m.model_layers AS hybrid,
        CASE c.quantity WHEN 'weak_head_share' THEN m.weak_head_share ELSE m.sink_strength END AS x,
        -- The standard error that S's interval stands for; for a level not listed half its width is above it.
        CASE WHEN c.quantity = 'sink_strength' THEN (m.interval_high - m.interval_low) / 2 / CASE
            WHEN abs(m.interval_level - 0.99) < 1e-9 THEN 2.5758293035489004
            WHEN abs(m.interval_level - 0.95) < 1e-9 THEN 1.959963984540054
            WHEN abs(m.interval_level - 0.90) < 1e-9 THEN 1.6448536269514722
            ELSE 1.0
        END ELSE 0.0 END AS x_error,
        c.* EXCLUDE (spec_id, counts, points, left_out, comparisons, within_kind, versions)
    FROM measurements AS m
    INNER JOIN calibrations AS c ON c.spec_id = m.spec_id AND c.counts
),

pieces AS (
    SELECT
        *,
        list_filter(
            cells,
            lambda cell: coalesce(cell.qk_norm, qk_norm) = qk_norm
            AND x >= coalesce(cell.x_low, '-infinity'::DOUBLE)
            AND x < coalesce(cell.x_high, 'infinity'::DOUBLE)
        )[1] AS piece
    FROM placed
),

predicted AS (
    SELECT
        *,
        -- Outside the panel's range the interval also covers a loss that levels off at the panel's edge.
        list_transform(
            [x, greatest(x_low, least(x_high, x))],
            lambda place: {
                'points': piece.intercept + piece.slope * place,
                -- Student's: what pairs scatter, the fit's own uncertainty at this x, and the error of S.
                'half_width': t_quantile * sqrt(
                    residual_variance * (1 + 1 / piece.pairs + coalesce((place - piece.x_mean) ** 2 / x_squares, 0))
                    + (piece.slope * x_error) ** 2
                )
            }
        ) AS ends
    FROM pieces
)

SELECT
    model_id,
    revision,
    spec_id,
    task,
    protocol,
    predictor,
    ends[1].points AS predicted_points,
    list_min(list_transform(ends, lambda place: place.points - place.half_width)) AS predicted_low,
    list_max(list_transform(ends, lambda place: place.points + place.half_width)) AS predicted_high,
    level AS predicted_level,
    -- The reasons to doubt it, in words in `zoo show`.
    list_filter(
        [
            CASE WHEN list_contains(llms, model_id) THEN 'in_panel' END,
            CASE WHEN x NOT BETWEEN x_low AND x_high THEN 'extrapolated' END,
            CASE WHEN parameters NOT BETWEEN smallest_parameters / 1.5 AND largest_parameters * 1.5
                THEN 'other_size' END,
            CASE WHEN NOT list_contains(qk_norms, qk_norm) THEN 'other_qk_norm' END,
            CASE WHEN learned_sink THEN 'learned_sink' END,
            CASE WHEN hybrid THEN 'hybrid' END,
            CASE WHEN qk_norm = 'layerwise' THEN 'layerwise' END
        ],
        lambda flag: flag IS NOT NULL
    ) AS flags,
    pairs,
    llms,
    calibration_id,
    fitted_at,
    row_number() OVER (
        PARTITION BY model_id, revision, spec_id, task
        ORDER BY fitted_at DESC, protocol
    ) = 1 AS latest
FROM predicted
ORDER BY spec_id, task, protocol, predicted_points DESC NULLS LAST, model_id;
