-- Best backbone first: the current revision of every measured model, ranked by Sink Strength within its spec_id.
CREATE VIEW ranking AS
WITH current_revisions AS (
    SELECT *
    FROM measurements
    -- Of several measured revisions the one whose measurement started last is the current one.
    QUALIFY row_number() OVER (
        PARTITION BY spec_id, model_id
        ORDER BY started_at DESC NULLS LAST, finished_at DESC, revision
    ) = 1
)

SELECT
    rank() OVER (PARTITION BY spec_id ORDER BY sink_strength DESC) AS rank,
    model_id,
    revision,
    sink_strength,
    interval_low AS low,
    interval_high AS high,
    sink_position,
    sink_token,
    qk_norm,
    attention_layers,
    heads,
    parameters,
    prompt_format,
    sign_stability,
    weak_head_share,
    dtype,
    spec_id,
    started_at
FROM current_revisions
ORDER BY spec_id, rank, model_id;
