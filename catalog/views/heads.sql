-- One row a query head of a measurement: log-odds in nats, masses in 0..1, and a list with one log-odds a prompt.
CREATE VIEW heads AS
SELECT
    * EXCLUDE (prompt_log_odds, prompt_log_odds_content),
    1 / (1 + exp(-log_odds)) AS mass,
    1 / (1 + exp(-log_odds_content)) AS mass_content,
    prompt_log_odds,
    prompt_log_odds_content
FROM head_files
WHERE attempt_id IN (SELECT attempt_id FROM measurements);
