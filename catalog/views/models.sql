-- What listings of a source saw: one row a (model, scan) with the verdict and its reason.
CREATE VIEW models AS
SELECT *
FROM model_files;
