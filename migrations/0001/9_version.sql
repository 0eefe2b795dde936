-- onlyonce schema, version 1: every chapter was applied.
insert into onlyonce.schema_version (version) values (1);
