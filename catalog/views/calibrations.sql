-- Every fit of the panel; `counts` marks the latest of its (task, protocol, spec_id), which predictions use.
CREATE VIEW calibrations AS
SELECT
    *,
    row_number() OVER (
        PARTITION BY task, protocol, spec_id
        ORDER BY fitted_at DESC, calibration_id
    ) = 1 AS counts
FROM calibration_files;
