-- One row a robustness cell of a measurement: Sink Strength (nats) of a random subset of `size` prompts drawn with `seed`.
CREATE VIEW sweep AS
SELECT *
FROM sweep_files
WHERE attempt_id IN (SELECT attempt_id FROM measurements);
