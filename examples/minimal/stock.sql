create table stock (sku text primary key, held int not null);
insert into stock values ('tea', 0), ('coffee', 0);
