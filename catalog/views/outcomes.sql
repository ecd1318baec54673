-- One row an attempt, measured or failed; `counts` marks the one that counts of its (model_id, revision, spec_id).
CREATE VIEW outcomes AS
SELECT
    *,
    -- The latest attempt counts; a transient failure only while there is nothing else.
    row_number() OVER (
        PARTITION BY model_id, revision, spec_id
        ORDER BY transient, attempt DESC, attempt_id
    ) = 1 AS counts
FROM outcome_files;
