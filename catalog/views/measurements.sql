-- The measured models: of every (model_id, revision, spec_id) the attempt that counts, where it succeeded.
CREATE VIEW measurements AS
SELECT * EXCLUDE (counts, status, stage, reason, message, transient)
FROM outcomes
WHERE counts AND status = 'measured';
